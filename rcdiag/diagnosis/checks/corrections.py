"""Checks of corrections: what their settings do, and whether they are valid at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rcdiag.diagnosis.checks.check import CheckInput, Observation, cause_first, check
from rcdiag.formats import plural
from rcdiag.results import ScoreResult
from rcdiag.results.guide import PROPOSAL

if TYPE_CHECKING:
    from rcdiag.results import SweepResult


@check(
    severity="warning",
    stages=("score",),
    asks="Does every correction keep some token of every batch?",
    says="A correction rejects every token of a batch: there is no loss (NaN in the trainer).",
    fix="widen the bounds or find the cause of the mismatch; a mean log-ratio beyond a geometric "
    "bound rejects every long sequence at once",
    example="seq_mean_k1 0.999_1.001 where KL is above 0.001 nats per token and sequences are long",
    see=("seq_mean_k1", "kept_tokens"),
)
def everything_rejected(given: CheckInput) -> Iterator[Observation]:
    result: ScoreResult = given.result
    where: dict[str, list[str]] = {}
    batches = {step: batch.corrections for step, batch in result.steps.items()}
    for step, corrections in (batches or {"the table": result.corrections}).items():
        for name, correction in corrections.items():
            if correction.kept_tokens == 0:
                where.setdefault(name, []).append(step)
    if where:
        in_steps = {
            name: f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"
            for name, steps in where.items()
        }
        names = ", ".join(
            f"{name} ({steps})" if batches else name for name, steps in in_steps.items()
        )
        yield Observation(
            message=f"{plural(len(where), 'preset')} {'keeps' if len(where) == 1 else 'keep'} no "
            f"token {'of a step' if batches else 'of the table'}, so that there is no loss (NaN in "
            f"the trainer): {names}",
            evidence=where,
            severity=given.severity_of_presets,
        )


@check(
    severity="note",
    stages=("score",),
    asks="Does float32, which trainers use, keep the same tokens as float64?",
    says="Trainers compute in float32; its rounding moves tokens or sequences across a threshold, "
    "so the trainer logs other numbers.",
    fix="compare dashboards with --arithmetic float32",
    example="a binary KL of tokens with a probability near 1 has few digits left in float32",
    see=("kept_tokens", "weight_sum"),
)
def float32_decides(given: CheckInput) -> Iterator[Observation]:
    result: ScoreResult = given.result
    for name, correction in result.corrections.items():
        rounded = correction.in_float32
        if rounded is None:
            continue
        sentence = (
            f"{name} in float32, as the trainer computes, keeps "
            f"{plural(rounded['kept_tokens'], 'token')} of "
            f"{plural(rounded['kept_sequences'], 'sequence')}"
        )
        if rounded["weight_sum"] is not None:
            sentence += f" and the weight sum is {rounded['weight_sum']:.9g}"
        sentence += f"; in float64 {correction.kept_tokens:,} of {correction.kept_sequences:,}"
        if correction.weight_sum is not None:
            sentence += f" and {correction.weight_sum:.9g}"
        yield Observation(message=sentence, evidence={"preset": name, **rounded})


@check(
    severity="warning",
    stages=("score",),
    asks="Does every setting of a correction have an effect?",
    says="The trainer accepts a setting and silently ignores it; a note where a preset of the "
    "trainer itself has it.",
    fix="remove the setting, or enable what it depends on",
    example="use_rs: true with use_tis: false in slime",
    see=("use_tis", "use_rs"),
)
def setting_without_effect(given: CheckInput) -> Iterator[Observation]:
    plan = given.plan
    if plan is None:
        return
    for name, config in plan.configs.items():
        trainer = plan.trainer_of(name)
        own = name in trainer.presets or name in plan.others
        for sentence in trainer.ignored(config):
            yield Observation(
                message=f"{name}: {sentence}",
                evidence={"trainer": trainer.name},
                severity="note" if own else "warning",
            )


@check(
    severity="note",
    stages=("score",),
    asks="Do k1 bounds keep what verl's documentation says?",
    says="From 0.7.1 on verl compares -log_ratio with k1 bounds, so lower_upper keeps ratios in "
    "[1/upper, 1/lower]; its documentation says [lower, upper]. Reported only where it changes "
    "what is kept.",
    fix="write their reciprocals, 1/upper first, to get the documented bounds",
    example='token_k1 "0.6_1.6" keeps ratios within [0.625, 1.667]',
    see=("token_k1", "accepted_ratios"),
    source="verl, verl/trainer/ppo/rollout_corr_helper.py, against docs/algo/rollout_corr.md",
)
def mirrored_bounds(given: CheckInput) -> Iterator[Observation]:
    """Report k1 bounds that verl's code and its documents read differently, where it matters."""
    result: ScoreResult = given.result
    differ = {
        name: {
            "accepted_ratios": correction.actual["accepted_ratios"],
            "kept_tokens": correction.kept_tokens,
            "kept_tokens_by_documents": correction.actual["kept_tokens_by_documents"],
        }
        for name, correction in result.corrections.items()
        if correction.actual.get("kept_tokens_by_documents", correction.kept_tokens)
        != correction.kept_tokens
    }
    if not differ:
        return
    first, numbers = next(iter(differ.items()))
    more = f" and {plural(len(differ) - 1, 'more preset')}" if len(differ) > 1 else ""
    yield Observation(
        message=f"k1 bounds keep {plural(numbers['kept_tokens'], 'token')}, "
        f"{numbers['kept_tokens_by_documents']:,} as documented ({first}{more}): "
        "verl compares -log_ratio with k1 bounds, so lower_upper keeps ratios from 1/upper to "
        "1/lower",
        evidence=differ,
    )


@check(
    severity="error",
    stages=("sweep",),
    asks="Are the recorded log-probs those of the distribution that sampled, so that importance "
    "weights can help?",
    says="No correction is recommended because the recorded log-probs are wrong: the recorded "
    "policy is not the one that sampled, or values are NaN. Importance weights made from them add "
    "error.",
    fix="find out which policy sampled, and record its log-probs; then sweep again",
    example="kappa below 0.3 with its whole interval, or a mean ratio four standard errors from 1",
    see=("kappa", "ratio_mean_z"),
    source=PROPOSAL,
)
def fix_before_correcting(given: CheckInput) -> Iterator[Observation]:
    result: SweepResult = given.result
    advice = result.recommendation
    if advice.answer == "fix-the-cause":
        yield Observation(
            message="no weights repair this: fix the cause first",
            evidence={"answer": advice.answer},
            fix=cause_first(result),
        )


@check(
    severity="warning",
    stages=("score",),
    asks="Does the trainer detect NaN log-probs?",
    says="The trainer replaces NaN log-probs by a number before it checks for NaN: these tokens "
    "get a ratio and a weight like any other.",
    fix="find out why the sampler records NaN",
    example="open-instruct: rollout NaN, old -0.5: log-ratio -1.5",
    see=("non-finite-log-probs",),
    source="open-instruct commit e6c3044a, open_instruct/grpo_utils.py, mask_logprobs",
)
def nan_taken_for_log_prob(given: CheckInput) -> Iterator[Observation]:
    """Report tokens whose NaN the trainer takes for a log-prob, where the table has such tokens."""
    if given.plan is None or not given.non_finite.tokens:
        return
    instead = {
        plan_name: correction.guard.nan_log_prob
        for plan_name, correction in given.plan.corrections.items()
        if correction.guard.nan_log_prob is not None
    }
    if instead:
        value = next(iter(instead.values()))
        yield Observation(
            message=f"{', '.join(instead)}: NaN log-probs become {value:g} before "
            "anything is computed, so these tokens get a ratio and count in every mean",
            evidence={"log_prob": value, "presets": list(instead)},
        )


CORRECTION_CHECKS = (
    float32_decides,
    everything_rejected,
    setting_without_effect,
    mirrored_bounds,
    nan_taken_for_log_prob,
)
SWEEP_CHECKS = (fix_before_correcting,)
