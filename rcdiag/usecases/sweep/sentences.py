"""The sentences of a recommendation, with the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rcdiag.formats import number, plural, with_interval
from rcdiag.results import Diagnosis, MetricValue
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.usecases.sweep.scores import Scores
from rcdiag.usecases.sweep.sketched_gradients import DIMENSIONS
from rcdiag.usecases.sweep.state import SweepState

ONE_CLUSTER = (
    "All sequences belong to one prompt group: no difference between candidates has a standard "
    "error."
)
NO_ADVANTAGE = (
    "No sequence has a known advantage, or no gradient varies: no error can be estimated."
)
NO_REWARDS = (
    "The table has no rewards and no advantages: every sequence counts with the advantage 1, so "
    "that only a shift in how often tokens are used is seen as bias."
)


def method(state: SweepState, referred: bool) -> str:
    """Say how candidates were scored."""
    batches = len(state.steps)
    of = "the table" if batches == 1 else f"one of the {batches} steps"
    error, bias = "variance", ""
    if referred:
        error = "squared bias plus variance"
        bias = (
            "; the bias is the distance from the gradient weighted by the untruncated ratios of "
            "whole sequences, by products of different prompt groups"
        )
    return (
        f"Variance without correction over {error} of the mean gradient of {of}. Gradients are "
        f"those of the output bias, (1 - p) by token id in {DIMENSIONS} dimensions less the "
        f"target's mean, times {_signal(state)}{bias}. Weights are scaled to a mean of 1. An "
        "approximation: no model was run, and a bias that averages out over the contexts of a "
        "token id is not seen."
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
    return [f"{sequences:,} sequences in {clusters} clusters are few: the errors are rough."]


def not_numbers(tokens: int) -> str:
    return (
        f"{plural(tokens, 'unmasked log-prob')} {'is' if tokens == 1 else 'are'} NaN, infinite, "
        "positive or below -1e12: repair the dump before correcting."
    )


def must_be_repaired(diagnosis: Diagnosis) -> str:
    """Say that no correction repairs the fault that was diagnosed."""
    return f"{diagnosis.summary} No weights repair that: nothing is ranked."


def costs_nothing(away: float) -> str:
    """Say that a table's mismatch is rounding that costs nothing."""
    return (
        f"The mismatch is rounding and costs nothing: weights of whole sequences differ from 1 by "
        f"{away:.2g} on average."
    )


def gate(values: Mapping[str, MetricValue]) -> list[str]:
    """Say why the recorded behavior policy is not the one that sampled; nothing where it may be."""
    sentences = []
    kappa, z = values["kappa"], values["ratio_mean_z"]
    if kappa.level == "error":
        sentences.append(
            f"kappa is {with_interval(kappa)}, not near 1: the behavior log-probs "
            "are not those of the policy that sampled, so the ratios are noise and correcting with "
            "them does harm."
        )
    if z.level == "error":
        mean = values["ratio_mean"].value
        sentences.append(
            f"E[ratio] is {mean:.5g}, {abs(z.value or 0.0):.1f} standard errors from 1: the tokens "
            "were not sampled from the recorded behavior policy."
        )
    return sentences


def presupposed(values: Mapping[str, MetricValue]) -> list[str]:
    """Say that a premise of the reference is in doubt; nothing where it holds."""
    mean = values["ratio_mean"]
    if mean.low is None or mean.high is None or mean.low <= 1.0 <= mean.high:
        return []
    return [
        f"The reference assumes E[ratio] = 1; over tokens it is {with_interval(mean)}, and the "
        "interval excludes 1."
    ]


def mean_above_one(values: Mapping[str, MetricValue]) -> str | None:
    """Say that the ratios cannot be used: their mean over sequences is above 1; None if not.

    A mean below 1 does not refute the premise: rare large ratios are easily missed.
    """
    mean = values["ratio_mean_seq"]
    if mean.low is None or not mean.low > 1.0:
        return None
    return (
        f"A correction assumes E[ratio] = 1; over sequences it is {with_interval(mean)}, above 1: "
        "no candidate is scored with these ratios."
    )


def causes(values: Mapping[str, MetricValue]) -> list[str]:
    """Say where most of the mismatch sits in few tokens, whose cause is worth finding first."""
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
        f"Weighted by their untruncated ratios the sequences count as {left:.1f}; more than "
        f"{limit:.0f} are needed as a reference."
    )


def heavy_tail(shape: float, limit: float) -> str:
    return (
        f"k-hat of the ratios of sequences is {shape:.2f}, not below {limit:g}: their tail is too "
        "heavy for a reference."
    )


def nothing_allowed(broken: Mapping[str, list[str]]) -> str:
    return f"Every candidate breaks a constraint; without correction: {broken['none'][0]}."


SHOWN = 5  # candidates that a sentence names


def costs(allowed: Sequence[str], scores: Scores) -> str:
    """Say what candidates cost where the bias of none is known."""
    by_noise = sorted(allowed, key=lambda name: scores.noise(name) or 0.0)
    listed = ", ".join(f"{name} {number(scores.noise(name))}" for name in by_noise[:SHOWN])
    more = f" and {len(by_noise) - SHOWN} more" if len(by_noise) > SHOWN else ""
    return (
        "Without a reference the bias of no candidate is known, and no correction may be the worst "
        f"of them: candidates cannot be distinguished. What they cost in variance: {listed}{more}."
    )


def unresolved(near: Sequence[str], scores: Scores) -> str:
    """Say that the reference is too noisy to tell whether no correction is biased."""
    return (
        "The reference is too noisy: without correction bias² may be anything up to "
        f"{number(scores.most_bias('none'))} times the variance of a batch. More sequences would "
        f"decide; until then these cannot be distinguished: {listed(near)}."
    )


def choice(best: str, chosen: str, near: Sequence[str], scores: Scores) -> str:
    """Step 4: the simplest within one standard error of the least error."""
    lowest = f"{title(best)} has the lowest estimated gradient error, {_parts(best, scores)}"
    others = [name for name in near if name != chosen]
    if best == chosen:
        return (
            f"{lowest}; not distinguishable from it: {listed(others)}." if others else f"{lowest}."
        )
    return (
        f"{lowest}; {'no correction' if chosen == 'none' else chosen} ({_parts(chosen, scores)}) "
        f"is the simplest of {len(near)} that are within one standard error of it."
    )


def title(name: str) -> str:
    """Name a candidate at the start of a sentence."""
    return "No correction" if name == "none" else name


def listed(names: Sequence[str]) -> str:
    """Name some candidates, the first ones where they are many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _parts(name: str, scores: Scores) -> str:
    most = scores.most_bias(name)
    up_to = "" if most is None else f" (up to {number(most)})"
    return f"bias² {number(scores.bias(name))}{up_to} + variance {number(scores.noise(name))}"
