"""The sentences of a recommendation, with the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rcdiag.formats import with_interval
from rcdiag.results import Diagnosis, MetricValue
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.usecases.sweep.scores import Scores
from rcdiag.usecases.sweep.sketched_gradients import DIMENSIONS
from rcdiag.usecases.sweep.state import SweepState

ONE_CLUSTER = "All sequences depend on each other (one cluster): no difference has an error."
NO_ADVANTAGE = (
    "No sequence has a known advantage, or no gradient has any noise: no error can be measured."
)
NO_REFERENCE = (
    "Without a reference the bias of no candidate is known, and weights may be further from the "
    "target than none: no correction is recommended. Bring the policies nearer to each other."
)
NO_REWARDS = (
    "The table has no rewards and no advantages: every sequence counts with the advantage 1, so "
    "that only a shift in the use of tokens is seen as bias."
)


def method(state: SweepState, referred: bool) -> str:
    """Say how candidates were scored."""
    batches = len(state.steps)
    of = "the table" if batches == 1 else f"one of the {batches} steps"
    error, bias = "noise", ""
    if referred:
        error = "squared bias plus noise"
        bias = (
            "; the bias is the distance from the gradient weighted by the untruncated ratios of "
            "sequences, by products of different clusters"
        )
    return (
        f"Noise without correction over {error} of the mean gradient of {of}. Gradients are "
        f"sketches in {DIMENSIONS} dimensions of (1 - p) by token id less the target's mean, times "
        f"{_signal(state)}{bias}. Weights are scaled to a mean of 1. A proxy: no model was run."
    )


def _signal(state: SweepState) -> str:
    baseline = state.plan.baseline
    if signal(state) is not None:
        return "the advantage 1"
    return "recorded advantages" if baseline is None else f"rewards less {baseline.kind}"


def signal(state: SweepState) -> str | None:
    """Say that a table has neither rewards nor advantages; None where it has."""
    return NO_REWARDS if state.plan.without_signal else None


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
            f"kappa is {with_interval(kappa)}, not near 1: the behavior log-probs "
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


def presupposed(values: Mapping[str, MetricValue]) -> list[str]:
    """Say that a premise of the reference is in doubt; nothing where it holds."""
    mean = values["ratio_mean"]
    if mean.low is None or mean.high is None or mean.low <= 1.0 <= mean.high:
        return []
    return [
        f"Untruncated ratios are the reference if E[ratio] = 1; over tokens it is "
        f"{with_interval(mean)}, which leaves 1 out."
    ]


def mean_above_one(values: Mapping[str, MetricValue]) -> str | None:
    """Say that the ratios cannot be used: their mean over sequences is above 1; None if not.

    A mean below 1 does not refute the premise: rare large ratios are easily missed.
    """
    mean = values["ratio_mean_seq"]
    if mean.low is None or not mean.low > 1.0:
        return None
    return (
        f"A correction presupposes E[ratio] = 1; over sequences it is {mean.value:.4g} "
        f"({mean.low:.4g} to {mean.high:.4g}), above 1: no candidate is scored by these ratios."
    )


def causes(values: Mapping[str, MetricValue]) -> list[str]:
    """Say that a cause that explains most of the mismatch is better mended than corrected."""
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
        f"{limit:.0f}: too few for a reference."
    )


def heavy_tail(shape: float, limit: float) -> str:
    return (
        f"k-hat of the ratios of sequences is {shape:.2f}, not below {limit:g}: they are no "
        "reference."
    )


def nothing_allowed(broken: Mapping[str, list[str]]) -> str:
    return f"Every candidate breaks a constraint; without correction: {broken['none'][0]}."


def choice(best: str, chosen: str, near: Sequence[str], scores: Scores) -> str:
    """Step 4: the simplest within one standard error of the least error."""
    if len(near) == 1:
        return (
            f"{best} has the least error, {_parts(best, scores)}; no other is within one standard "
            "error, and 5%."
        )
    if best == chosen:
        return f"{best} has the least error, {_parts(best, scores)}."
    close = f"{len(near)} candidates are indistinguishable from {best} ({_parts(best, scores)})"
    return f"{close}, itself too; {chosen} ({_parts(chosen, scores)}) is the simplest of them."


def _parts(name: str, scores: Scores) -> str:
    return f"squared bias {scores.bias(name) or 0.0:.2g} + noise {scores.noise(name) or 0.0:.2g}"
