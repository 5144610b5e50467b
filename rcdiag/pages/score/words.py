"""Sentences about one pair of policies, for terminal and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, isfinite

from rcdiag.diagnosis.correction_health import LEFT_OF_UPDATE, verl_check
from rcdiag.diagnosis.rules import level
from rcdiag.formats import (
    effective,
    effective_share,
    listed,
    measured,
    part_of,
    plural,
    with_interval,
)
from rcdiag.results import (
    Diagnosis,
    MetricValue,
    PairResult,
    ScoreResult,
    SequenceTokens,
)
from rcdiag.results.base import LEVELS
from rcdiag.results.diagnosis import GRAVEST, WHY_MILDER
from rcdiag.results.score import NOT_GIVEN, WEIGHTED
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.metrics.expected import lowered_ess_guide


def answer(result: ScoreResult) -> str:
    """Summarise a pair of policies: KL and effective sample size."""
    if not result.target:
        return alone(result.behavior)
    values = result.mismatch
    k3, ess = values["k3_kl"], values["ess_seq"]
    if k3.value is None and values["k2_kl"].value is not None:
        return (
            f"k2({result.behavior}, {result.target}) {with_interval(values['k2_kl'])} nats per "
            f"token; no KL or ESS: {not_sampler(result)}"
        )
    if k3.value is None:
        left_out, rows = result.rows_left_out, plural(result.num_sequences, "row")
        why = f": log-probs are invalid in {left_out:,} of {rows}" if left_out else ""
        return f"no number of the mismatch can be computed{why}"
    of_numbers = result.num_sequences - result.rows_left_out
    sequences = (
        f", ESS {effective_share(ess, of_numbers)} of {plural(of_numbers, 'sequence')}"
        if ess.value is not None
        else ""
    )
    if result.rows_left_out:
        sequences += f", without {plural(result.rows_left_out, 'row')} of invalid log-probs"
    return f"KL({result.behavior} || {result.target}) {with_interval(k3)} nats per token{sequences}"


def not_sampler(result: ScoreResult) -> str:
    """Say that the behavior policy did not sample, or that nothing shows that it did."""
    known = WEIGHTED in (result.token_means, result.sequence_means)  # from the policy that sampled
    return f"{result.behavior} {'did not sample' if known else 'is not known to have sampled'}"


def means(pair: PairResult | ScoreResult, sampler: str | None) -> str:
    """Say how the numbers of a pair are computed that presuppose that its behavior sampled."""
    made = {
        "tokens": pair.token_means,
        "whole sequences": pair.sequence_means,
    }
    weighted = [what for what, how in made.items() if how == WEIGHTED]
    missing = [what for what, how in made.items() if how == NOT_GIVEN]
    sentences = []
    if weighted:
        sentences.append(f"means over {' and '.join(weighted)} are reweighted from {sampler}")
    if missing:
        sentences.append(f"means over {' and '.join(missing)} are not given")
    return "; ".join(sentences)


def lowered_levels(mismatch: Mapping[str, MetricValue], diagnosis: Diagnosis | None) -> str:
    """Say why a number beyond a limit has a milder level than the limit; "" if none has."""
    why = "" if diagnosis is None else WHY_MILDER.get(diagnosis.verdict, "")
    if not why or not any(is_lowered(name, value) for name, value in mismatch.items()):
        return ""
    assert diagnosis is not None
    return f"No metric counts as worse than {GRAVEST[diagnosis.verdict]}: {why}."


def is_lowered(name: str, value: MetricValue) -> bool:
    """Tell whether the verdict makes the level of a metric milder than its guide does."""
    guide = METRICS[name].guide
    if guide is None or value.level not in ("ok", "warning") or value.expected is not None:
        return False
    own = level(guide, value.value, value.low, value.high)
    return own is not None and LEVELS.index(own) > LEVELS.index(value.level)


def alone(policy: str) -> str:
    """Say that the table has only one policy."""
    return f"none: {policy} is the only policy, and a mismatch needs two"


def expected(name: str, value: MetricValue) -> str:
    """Format what is expected of a number; "" if nothing is.

    That is the number of two equal policies, or how far typical rounding takes it on this table.
    Engines that round less come nearer to equal policies, so this is a bound.
    """
    metric = METRICS[name]
    if value.expected is None or metric.guide is None:
        return "" if metric.ideal is None else f"{metric.ideal:g}"
    hundredths = 100 * value.expected
    if metric.guide.error < metric.guide.warning:
        return f"≥{floor(hundredths) / 100:g}"
    return f"≤{ceil(hundredths) / 100:g}"


def limits(name: str, value: MetricValue) -> str:
    """Format the bounds of a number's levels, warning first; "" if it is not judged."""
    guide = METRICS[name].guide
    if guide is None:
        return ""
    if name == "ess_seq" and value.expected is not None:
        guide = lowered_ess_guide(guide, value.expected)
    bounds = [f"{bound:.3g}" for bound in (guide.warning, guide.error) if isfinite(bound)]
    if guide.around is None:
        return ", ".join(bounds)
    return f"{f'{guide.around:g}' if guide.around else ''}±{', ±'.join(bounds)}"


def clusters(result: ScoreResult) -> str:
    """Say which clusters the 95% intervals are based on."""
    if result.num_clusters < result.num_sequences:
        return f"{result.num_clusters:,} prompt groups"
    return f"{result.num_clusters:,} sequences (the table has no groups of several)"


def raw_ess(result: ScoreResult) -> str:
    """Return the effective sample sizes of the raw ratios as text; "" if unknown."""
    token, sequence = (result.mismatch[name] for name in ("ess_token", "ess_seq"))
    if token.value is None or sequence.value is None:
        return ""
    return f"of raw ratios: tokens {measured(token)[0]}, sequences {measured(sequence)[0]}"


def verl_check_line(result: ScoreResult) -> str:
    """Say what verl's own check of its weights would warn of; "" for other trainers."""
    checked = {
        name: verl_check(correction.metrics)
        for name, correction in result.corrections.items()
        if correction.trainer.startswith("verl")
        and any(key.endswith("/rollout_is_mean") for key in correction.metrics)
    }
    if not checked:
        return ""
    worst = max(checked, key=lambda name: len(checked[name][0]))
    warnings, tests = checked[worst]
    if not warnings:
        return f"verl's own check (check_rollout_is_health): no warning for any of {len(checked)}"
    quiet = sum(not warnings for warnings, _ in checked.values())
    others = f"; none for {quiet} of {len(checked)} presets" if len(checked) > 1 else ""
    return (
        f"verl's own check (check_rollout_is_health): {len(warnings)} of {tests} warnings for "
        f"{worst}: {'; '.join(warnings)}{others}"
    )


# A preset has little effect if it keeps all tokens, and the mean weight and the ESS of its weights
# are within 1% of 1.
EVEN = 0.99
LISTED = 2  # presets that a line names
FEW_PRESETS = 3  # up to so many have a line each, with their level


def preset_lines(result: ScoreResult, default: str | None = None) -> list[tuple[str, str]]:
    """Describe in three lines what the presets do on this table: label and sentence.

    The lines are on presets without effect, the most costly preset, and `default`, the trainer's
    default. Up to `FEW_PRESETS` get a line each.
    """
    names = list(result.corrections)
    if len(names) <= FEW_PRESETS:
        return [
            (
                name,
                f"{_effect(result, name)} ({result.corrections[name].level or 'judged by replay'})",
            )
            for name in names
        ]
    idle = [name for name in names if _changes_nothing(result, name)]
    active = [name for name in names if name not in idle]
    lines = []
    if idle:
        presets = f"{len(idle)} of {len(names)} presets"
        unweighted = [result.corrections[name].weight_sum is None for name in idle]
        one = len(idle) == 1
        label, what = ("no effect", "changes nothing" if one else "change nothing")
        if not all(unweighted):
            label, what = ("little effect", f"{'has' if one else 'have'} weights near 1")
        lines.append((label, f"{presets} {what}: {listed(idle, LISTED)}"))
    if active:
        lowest = min(_left(result, name) for name in active)
        worst = [name for name in active if _left(result, name) == lowest]
        lines.append(("cost most", _with_effects(result, worst)))
    if default in result.corrections:
        trainer = result.corrections[default].trainer
        lines.append(("default", f"{trainer}: {default}, {_effect(result, default)}"))
    if result.rows_left_out and lines:  # a trainer does not leave them out
        lines.append(
            ("presets", f"over all {result.num_sequences:,} rows, as the trainer computes")
        )
    return lines


def _changes_nothing(result: ScoreResult, name: str) -> bool:
    """Tell whether a preset has little effect; not known where the PPO ratio alone corrects."""
    correction = result.corrections[name]
    if correction.level is None:
        return False
    shares = (correction.actual["ess_token_applied"], correction.actual["ess_seq_applied"])
    even = all(share is not None and share >= EVEN for share in shares)
    mean = correction.mean_weight(result.num_tokens)
    even = even and (mean is None or abs(mean - 1.0) <= 1.0 - EVEN)
    return correction.kept_tokens == result.num_tokens and even


def _left(result: ScoreResult, name: str) -> float:
    """Return how much of the data a preset leaves: ESS times mean weight; -1 if unknown."""
    correction = result.corrections[name]
    mean = correction.mean_weight(result.num_tokens)
    share: float | None = correction.actual["ess_seq_applied"]
    if not correction.kept_tokens or _vanishing(mean):
        return 0.0
    return -1.0 if share is None else round(share * min(1.0 if mean is None else mean, 1.0), 6)


def _vanishing(mean_weight: float | None) -> bool:
    """Tell whether weights are so small that they leave no update."""
    return mean_weight is not None and level(LEFT_OF_UPDATE, mean_weight) == "error"


def _with_effects(result: ScoreResult, names: Sequence[str]) -> str:
    """List effects, each with the first of its presets: `a and 2 more: keeps no token; b: ...`."""
    by_effect: dict[str, list[str]] = {}
    for name in names:
        by_effect.setdefault(_effect(result, name), []).append(name)
    effects = [f"{listed(alike)}: {effect}" for effect, alike in by_effect.items()]
    more = f"; and {len(effects) - LISTED} more" if len(effects) > LISTED else ""
    return f"{'; '.join(effects[:LISTED])}{more}"


def _effect(result: ScoreResult, name: str) -> str:
    """Say what a preset keeps, and the effective number of sequences under its weights."""
    correction = result.corrections[name]
    if _changes_nothing(result, name):
        return "changes nothing" if correction.weight_sum is None else "weights near 1"
    if not correction.kept_tokens:
        return "keeps no token"
    mean = correction.mean_weight(result.num_tokens)
    if mean is not None and not isfinite(mean):
        return "weights are NaN or infinite: no update"
    if _vanishing(mean):
        return f"weights average {mean:.1g}, no update"
    kept = f"keeps {part_of(correction.kept_tokens, max(result.num_tokens, 1))} of tokens"
    share = correction.actual["ess_seq_applied"]
    if share is None:
        return f"{kept}, ESS unknown"
    left = effective(share * result.num_sequences)
    return f"{kept}, ESS {left} of {result.num_sequences:,}"


def holds_text(sequence: SequenceTokens) -> bool:
    """Tell whether a stored sequence has text, from a tokenizer or from the table itself."""
    context = sequence.context
    plain = context is not None and bool(context.prompt or context.response)
    return bool(sequence.texts) or plain
