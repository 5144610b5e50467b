"""The sentences of a recommendation, with the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rcdiag.results import Diagnosis, MetricValue
from rcdiag.results.base import written_interval
from rcdiag.results.sweep import SweepFamily, SweepRow
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.usecases.sweep.gradients import DIMENSIONS
from rcdiag.usecases.sweep.scores import Scores
from rcdiag.usecases.sweep.state import SweepState

ONE_CLUSTER = "All sequences depend on each other (one cluster): no difference has an error."
NO_SIGNAL = (
    "The table has no rewards and no advantages, so estimators cannot be judged by the gradients "
    "that they give; they are judged by a bound on their bias."
)
SIGNAL_LOST = (
    "The gradient of the rewards cannot be told from noise on this table (less than two standard "
    "errors), so estimators are judged by a bound on their bias."
)
BY_BOUND = (
    "1 - bound / 2, the bound being E|ratio - weight| over whole sequences (0 no bias, 2 the "
    "largest): 1 - E[w] + 2 E[(w - ratio)+]. It presupposes E[ratio] = 1 and knows bias alone; "
    "variance is held by the constraints."
)


def by_gradient(state: SweepState) -> str:
    """Say how candidates were scored."""
    batches = len(state.steps)
    of = "the table" if batches == 1 else f"one of the {batches} steps"
    signal = "recorded advantages"
    if state.plan.baseline is not None:
        signal = f"rewards less {state.plan.baseline.kind}"
    return (
        f"Efficiency (m . g)^2 / (|g|^2 E|mean|^2) of the mean gradient of {of}, by products of "
        f"different clusters. Gradients are sketches in {DIMENSIONS} dimensions of (1 - p) by "
        f"token id, times {signal}; the reference g is weighted by the untruncated ratios of "
        "sequences. A proxy: no model was run."
    )


def table(sequences: int, clusters: int) -> list[str]:
    """Say on how few sequences candidates are judged; nothing where they are enough."""
    if clusters >= FEW_CLUSTERS:
        return []
    return [f"{sequences:,} sequences in {clusters} clusters are few: errors are rough guesses."]


def not_numbers(tokens: int) -> str:
    return (
        f"{tokens:,} unmasked log-probs are NaN, infinite or positive: mend the dump before "
        "correcting."
    )


def must_be_mended(diagnosis: Diagnosis) -> str:
    """Say that no correction mends the fault that was diagnosed."""
    return f"{diagnosis.summary} No weights mend that: nothing is ranked."


def costs_nothing(away: float) -> str:
    """Say that a table's mismatch is rounding that costs nothing."""
    return (
        f"The mismatch is rounding that costs nothing: E|ratio - 1| over whole sequences is "
        f"{away:.2g}."
    )


def gate(values: Mapping[str, MetricValue]) -> list[str]:
    """Say why the recorded behavior policy is not the one that sampled; nothing where it may be."""
    sentences = []
    kappa, z = values["kappa"], values["ratio_mean_z"]
    if kappa.level == "error":
        sentences.append(
            f"kappa is {kappa.value:.2f} ({_interval(kappa)}), not near 1: the behavior log-probs "
            "are not those of the policy that sampled, so ratios are noise and correcting by them "
            "harms."
        )
    if z.level == "error":
        mean = values["ratio_mean"].value
        sentences.append(
            f"E[ratio] is {mean:.5g} and not 1, by {z.value:.1f} standard errors: the tokens were "
            "not drawn from the recorded behavior policy."
        )
    return sentences


def _interval(value: MetricValue) -> str:
    return written_interval(value, lambda end: f"{end:.2f}") or "no interval"


def presupposed(values: Mapping[str, MetricValue]) -> list[str]:
    """Say that the bound is used although its premise is in doubt; nothing where it holds."""
    mean = values["ratio_mean"]
    if mean.low is None or mean.high is None or mean.low <= 1.0 <= mean.high:
        return []
    return [
        f"The bound presupposes E[ratio] = 1; over tokens it is {mean.value:.5g} ({mean.low:.5g} "
        f"to {mean.high:.5g}), which leaves 1 out: scores are off by as much per token."
    ]


def mean_above_one(values: Mapping[str, MetricValue]) -> str | None:
    """Say that the bound cannot be used: the mean ratio of sequences is above 1; None if not.

    A mean below 1 does not refute the premise: rare large ratios are easily missed.
    """
    mean = values["ratio_mean_seq"]
    if mean.low is None or not mean.low > 1.0:
        return None
    return (
        f"The bound presupposes E[ratio] = 1; over sequences it is {mean.value:.4g} "
        f"({mean.low:.4g} to {mean.high:.4g}), above 1: no candidate is scored by it."
    )


def causes(values: Mapping[str, MetricValue]) -> list[str]:
    """Step 1: a cause that explains most of the mismatch is better mended than corrected."""
    share = values["top_share"].value
    if share is None or not share > 0.5:
        return []
    return [
        f"The top 0.1% of tokens hold {share:.0%} of the squared log-ratios: look at what they "
        "have in common first."
    ]


def negligible(distance: float, limit: float) -> str:
    return (
        f"The weights of whole sequences differ from 1 by {distance:.2g} on average, below "
        f"{limit:g}: there is nothing to correct."
    )


def few_effective(left: float, limit: float) -> str:
    return (
        f"Weighted by their untruncated ratios the sequences count as {left:.1f}, not above "
        f"{limit:.0f}: the reference gradient cannot be believed, so a bound on the bias decides."
    )


def heavy_tail(shape: float, limit: float) -> str:
    return (
        f"k-hat of the ratios of sequences is {shape:.2f}, not below {limit:g}: the reference "
        "gradient cannot be believed, so a bound on the bias decides."
    )


def nothing_allowed(broken: Mapping[str, list[str]]) -> str:
    return f"Every candidate breaks a constraint; without correction: {broken['none'][0]}."


def best_bound(families: Mapping[str, SweepFamily], sequences: int) -> list[str]:
    """Step 5: the upper bound of sequence TIS with the least b^2 + v / n.

    b = E[(ratio - C)+] / E[ratio], v the variance of the truncated weights.
    """
    if "seq_tis" not in families:
        return []
    errors = {
        row.bounds["upper"]: _error(row, sequences)
        for row in families["seq_tis"].rows
        if row.truncation_loss.value is not None and row.weight_variance is not None
    }
    if not errors or max(errors.values()) <= 0.0:
        return []
    best = min(errors, key=lambda bound: errors[bound])
    return [
        f"Of upper bounds of sequence TIS, {best:g} has the least squared bias bound plus "
        f"variance / n ({errors[best]:.2g}; n = {sequences:,})."
    ]


def _error(row: SweepRow, sequences: int) -> float:
    assert row.truncation_loss.value is not None
    assert row.weight_variance is not None
    return row.truncation_loss.value**2 + row.weight_variance / sequences


def choice(best: str, chosen: str, near: Sequence[str], scores: Scores) -> str:
    """Step 6: the simplest within one standard error of the best."""
    value = min(scores.value(best), 1.0)
    if len(near) == 1:
        return f"{best} scores {value:.3f}, and no other is within one standard error of it."
    close = f"{len(near)} candidates are indistinguishable from {best} ({value:.3f}), itself too"
    return f"{close}; {chosen} ({min(scores.value(chosen), 1.0):.3f}) is the simplest of them."
