"""Scores of the candidates, with replicates: by their gradients, or by a bound on their bias.

The score of a gradient is its efficiency eta = (m . g)^2 / (|g|^2 E|m_hat|^2), with m = E[G] of the
candidate, g = E[R] of the reference and m_hat the mean of G over a batch: the descent expected at
the best step size, relative to that of g itself without noise. It does not change when all weights
are multiplied by a number. Choosing by it is rcdiag's proposal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcdiag.results import MetricValue
from rcdiag.statistics.ratios import Array
from rcdiag.usecases.sweep.gradients import REFERENCE
from rcdiag.usecases.sweep.state import SweepState

REPLICATES = 1000


def draws(clusters: int, seed: int) -> Array:
    """Draw how often each cluster comes, [1 + REPLICATES, clusters]; the first row is the table."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(clusters, np.full(clusters, 1.0 / clusters), REPLICATES)
    return np.concatenate([np.ones((1, clusters)), drawn.astype(np.float64)])


def off_diagonal(counts: Array, sizes: Array, left: Array, right: Array) -> Array:
    """Product of the means of `left` and `right` over pairs of different clusters, [replicates].

    (sum k L . sum k R - sum k^2 L_c . R_c) / ((sum k n)^2 - sum k^2 n_c^2), with k the counts of
    the clusters, n their sizes, L and R [clusters, dimensions] their sums. What a cluster shares
    with itself is left out (copies of it too), so noise does not add up: a U-statistic.
    """
    products = ((counts @ left) * (counts @ right)).sum(axis=1)
    squared = np.square(counts)
    own = squared @ (left * right).sum(axis=1)
    pairs = np.square(counts @ sizes) - squared @ np.square(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):  # one cluster drawn again and again
        return (products - own) / pairs


def batch_square(counts: Array, sizes: Array, left: Array, square: Array, batches: int) -> Array:
    """E|m_hat|^2 of a batch, the table being `batches` of them; [replicates].

    Of the whole table it is |sum L|^2 / n^2: `square`, the part of different clusters, and the
    clusters' own, which is noise beyond `square` and is `batches` times as large in one batch.
    """
    total = np.square(counts @ sizes)
    own = counts @ np.square(left).sum(axis=1)
    pairs = total - counts @ np.square(sizes)
    whole = (pairs * square + own) / total
    return square + (whole - square) * batches


@dataclass(frozen=True, slots=True)
class Reference:
    """The gradient that is aimed at, as the clusters have it."""

    counts: Array  # [replicates, clusters]
    sizes: Array  # [clusters] sequences with a known reward or advantage
    sums: Array  # [clusters, dimensions]
    batches: int

    @property
    def square(self) -> Array:
        """|g|^2, [replicates]; at or below 0 where it is lost in noise."""
        return off_diagonal(self.counts, self.sizes, self.sums, self.sums)

    def efficiency(self, sums: Array) -> Array:
        """Eta of a candidate, [replicates]; 0 where it points away, NaN where g is lost."""
        along = off_diagonal(self.counts, self.sizes, sums, self.sums)
        square = off_diagonal(self.counts, self.sizes, sums, sums)
        noisy = batch_square(self.counts, self.sizes, sums, square, self.batches)
        aim = self.square
        with np.errstate(divide="ignore", invalid="ignore"):
            efficiency = np.square(np.maximum(along, 0.0)) / (aim * noisy)
        # A candidate that keeps nothing takes no step.
        return np.where(aim > 0.0, np.where(noisy > 0.0, efficiency, 0.0), np.nan)


def resolved(square: Array) -> bool:
    """Tell whether |g|^2 is two standard errors above 0."""
    return bool(square[0] > 2.0 * np.std(square[1:]))


# Rounding aside, equal scores are equal.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of all candidates; higher is better."""

    replicates: dict[str, Array]  # name -> [1 + replicates], the table's own first

    def value(self, name: str) -> float:
        return float(self.replicates[name][0])

    def metric(self, name: str) -> MetricValue:
        """Give the score with its percentile interval, both within [0, 1]."""
        replicates = self.replicates[name]
        if not np.isfinite(replicates[0]):
            return MetricValue(value=None)
        value = float(np.clip(replicates[0], 0.0, 1.0))
        finite = replicates[1:][np.isfinite(replicates[1:])]
        if len(finite) < 2:
            return MetricValue(value=value)
        low, high = np.clip(np.quantile(finite, (0.025, 0.975)), 0.0, 1.0)
        return MetricValue(value=value, low=float(low), high=float(high))

    def within(self, best: str, other: str) -> bool:
        """Tell whether `other` is within one standard error of `best`, both drawn together."""
        gap = self.replicates[best] - self.replicates[other]
        finite = gap[1:][np.isfinite(gap[1:])]
        return bool(gap[0] <= np.std(finite) + ROUNDING)


def by_gradient(state: SweepState, names: list[str], seed: int) -> Scores | None:
    """Score by efficiency; None where rewards are unknown or their gradient is lost in noise."""
    sizes = state.cluster(REFERENCE, "signals")
    if not sizes.any():
        return None
    sums = state.cluster(REFERENCE, "gradient")
    reference = Reference(draws(len(sizes), seed), sizes, sums, len(state.steps))
    if not resolved(reference.square):
        return None
    gradients = {name: state.cluster(name, "gradient") for name in names}
    return Scores({name: reference.efficiency(sums) for name, sums in gradients.items()})


def by_bound(state: SweepState, names: list[str], seed: int) -> Scores:
    """Scores of 1 - bound / 2, the bound being that on the bias of each candidate."""
    counts = draws(state.num_clusters, seed)
    return Scores({name: 1.0 - 0.5 * bias_bound(state, name, counts) for name in names})


def bias_bound(state: SweepState, name: str, counts: Array) -> Array:
    """E|ratio - weight| over whole sequences, given E[ratio] = 1; [replicates], from 0 to 2.

    1 - E[w] + 2 E[(w - ratio)+], w the mean weight of a sequence's tokens, 0 if rejected. Bounds
    the bias of the mean of any |f| <= 1. For sequence TIS it is the truncation loss, for MIS the
    rejected mass, without weights twice the total variation. Written so that no ratio beyond the
    bounds comes in: it can be estimated where the tail cannot. Choosing by it is rcdiag's proposal.
    """
    sequences = counts @ state.cluster("", "sequences")
    weights = counts @ state.cluster(name, "means")[:, 0]
    over = counts @ state.cluster(name, "over")
    return np.maximum(1.0 - weights / sequences, 0.0) + 2.0 * over / sequences
