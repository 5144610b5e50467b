"""Checks of replayed updates: whether they are safe, and whether they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rcdiag.diagnosis.checks.check import CheckInput, Observation, cause_first, check
from rcdiag.diagnosis.thresholds import SHOWN
from rcdiag.formats import listed, plural
from rcdiag.results import MetricValue

if TYPE_CHECKING:
    from rcdiag.results import ReplayResult, ScoreResult


@check(
    severity="warning",
    stages=("replay",),
    asks="Is there a loss under every preset?",
    says="This preset rejects every token of the batch, so there is no loss. The trainer logs NaN "
    "or 0 and takes no useful step.",
    fix="widen the bounds, or find the cause of the mismatch",
    example="decoupled_geo_rs where KL is above 0.001 nats per token and sequences long",
    see=("everything-rejected",),
)
def loss_undefined(given: CheckInput) -> Iterator[Observation]:
    result: ReplayResult = given.result
    names = {name: preset.undefined for name, preset in result.presets.items() if preset.undefined}
    if names:
        yield Observation(
            message=f"no loss under {', '.join(names)}: {next(iter(names.values()))}",
            evidence=names,
            severity=given.severity_of_presets,
        )


@check(
    severity="warning",
    stages=("score", "replay"),
    asks="Does the update of every preset pass the health rules?",
    says="An update fails a health rule: too few sequences kept, too small an effective sample "
    "size or mean weight; in a replay also a few sequences that dominate the gradient, a wrong "
    "direction, or a step that moves the policy too far. `score` reports it of presets that the "
    "user named.",
    fix="use a preset with health ok, or reduce the mismatch; where the verdict is broken, fix its "
    "cause first",
    example="rcdiag replay DUMP -v shows every rule with its source",
    see=("health",),
)
def unsafe_update(given: CheckInput) -> Iterator[Observation]:
    if given.result.kind == "score":
        yield from _unsafe_corrections(given)
    else:
        yield from _unsafe_updates(given)


def _unsafe_corrections(given: CheckInput) -> Iterator[Observation]:
    """Report presets that the user named and whose own rules fail, as `replay` does.

    Those that nobody named are in score's table of presets, with their level.
    """
    result: ScoreResult = given.result
    if given.plan is None or not given.plan.named:
        return
    failing = {
        name: {
            "kept_sequences": one.kept_sequences,
            "ess_seq_applied": one.actual["ess_seq_applied"],
            "mean_weight": one.mean_weight(result.num_tokens),
        }
        for name, one in result.corrections.items()
        if one.level == "error" and one.kept_tokens
    }
    if not failing:
        return
    first, numbers = next(iter(failing.items()))
    left = f"keeps {numbers['kept_sequences']:,} of {plural(result.num_sequences, 'sequence')}"
    if numbers["ess_seq_applied"] is not None:
        left += f", ESS {numbers['ess_seq_applied'] * result.num_sequences:,.0f}"
    if numbers["mean_weight"] is not None:
        left += f", mean weight {numbers['mean_weight']:.2g}"
    levels = {name: one.level for name, one in result.corrections.items()}
    yield Observation(
        message=f"{_are_unsafe(len(failing), len(result.corrections))}; e.g. {first} {left}",
        evidence=failing,
        fix=cause_first(result) or _safe_ones(result, levels),
    )


def _unsafe_updates(given: CheckInput) -> Iterator[Observation]:
    """Report updates that fail a health rule; the counts are those of the table of presets.

    There is no finding if only the update without a correction fails, which is there for
    comparison, or updates without a loss, which another check reports.
    """
    result: ReplayResult = given.result
    bad = {
        name: [rule.message for rule in preset.health.rules if rule.level == "error"]
        for name, preset in result.presets.items()
        if preset.health.verdict == "error"
    }
    levels = {
        name: preset.health.verdict
        for name, preset in result.presets.items()
        if preset.mode != "naive"
    }
    failing = [name for name in levels if name in bad]
    advised = [name for name in failing if not result.presets[name].undefined]
    if not advised:
        return
    yield Observation(
        message=f"{_are_unsafe(len(failing), len(levels))}; e.g. {advised[0]}: "
        f"{bad[advised[0]][0]}",
        evidence=bad,
        severity=given.severity_of_presets,
        fix=cause_first(result) or _safe_ones(result, levels),
    )


def _are_unsafe(failing: int, presets: int) -> str:
    be = "is" if failing == 1 else "are"
    return f"{failing} of {plural(presets, 'preset')} {be} unsafe by a health rule"


def _safe_ones(result: ScoreResult | ReplayResult, levels: Mapping[str, str | None]) -> str:
    """Name the corrections whose update is safe, or say that there is none or none is needed."""
    if result.diagnosis is not None and result.diagnosis.verdict == "healthy":
        return "train without a correction: the mismatch costs nothing"
    safe = [name for name, level in levels.items() if level == "ok"]
    if not safe:
        return f"reduce the mismatch: no preset of this {result.kind} passes the health rules"
    return f"use one with health ok ({listed(safe, SHOWN)}), or reduce the mismatch"


@check(
    severity="note",
    stages=("replay",),
    asks="Do decoupled and bypass updates move equally far from the sampler?",
    says="Over several steps, decoupled and bypass updates from the same start move different "
    "distances from the sampler: their 95% intervals of KL(rollout || new) do not overlap.",
    fix="see the figure over steps; the faster one is the riskier",
    example="rcdiag replay DUMP --model CHECKPOINT --steps 3",
)
def updates_part(given: CheckInput) -> Iterator[Observation]:
    """Report the first step after which decoupled and bypass updates differ significantly."""
    result: ReplayResult = given.result
    for step in result.steps:
        after = {
            name: (preset.mode, preset.after_step.kl_rollout_new)
            for name, preset in step.presets.items()
            if preset.after_step is not None
        }
        apart = [
            (one, other)
            for one, (mode, kl) in after.items()
            for other, (other_mode, other_kl) in after.items()
            if mode == "decoupled" and other_mode == "bypass" and _intervals_disjoint(kl, other_kl)
        ]
        if apart:
            one, other = apart[0]
            yield Observation(
                message=f"decoupled and bypass differ from step {step.step} on: {one} is "
                f"{after[one][1].value:.2g} nats per token from the sampler, {other} "
                f"{after[other][1].value:.2g}",
                evidence={"step": step.step, "pairs": [list(pair) for pair in apart[:10]]},
            )
            return


def _intervals_disjoint(one: MetricValue, other: MetricValue) -> bool:
    """Tell whether the 95% intervals of two numbers do not meet."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low


@check(
    severity="note",
    stages=("replay",),
    asks="Does the choice of preset matter?",
    says="All presets make the same update on this batch: no ratio is near a threshold.",
    fix="nothing to choose; try a step with more mismatch",
    example="a step where sampler and trainer agree up to rounding",
)
def all_updates_alike(given: CheckInput) -> Iterator[Observation]:
    result: ReplayResult = given.result
    pulls = {
        (round(preset.coefficients.norm, 12), round(preset.coefficients.sum, 12))
        for preset in result.presets.values()
        if not preset.undefined
    }
    if len(pulls) == 1 and len(result.presets) >= 3:
        yield Observation(
            message="all presets make the same update on this batch",
            evidence={"presets": list(result.presets)},
        )


UPDATE_CHECKS = (loss_undefined, unsafe_update, updates_part, all_updates_alike)
