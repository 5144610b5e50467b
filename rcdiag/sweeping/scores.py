"""Scores of the candidates, with replicates: by gradients, or by a bound on the bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcdiag.results import MetricValue
from rcdiag.sweeping.efficiency import Reference, draws, resolved
from rcdiag.sweeping.gradients import REFERENCE
from rcdiag.sweeping.keyed import Array
from rcdiag.sweeping.state import SweepState

# Rounding aside, equal scores are equal.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Scores:
    """Of every candidate; higher is better."""

    replicates: dict[str, Array]  # name -> [1 + replicates], the table's own first

    def value(self, name: str) -> float:
        return float(self.replicates[name][0])

    def metric(self, name: str) -> MetricValue:
        """Percentile interval; within [0, 1], as the score is."""
        found = self.replicates[name]
        if not np.isfinite(found[0]):
            return MetricValue(value=None)
        value = float(np.clip(found[0], 0.0, 1.0))
        finite = found[1:][np.isfinite(found[1:])]
        if len(finite) < 2:
            return MetricValue(value=value)
        low, high = np.clip(np.quantile(finite, (0.025, 0.975)), 0.0, 1.0)
        return MetricValue(value=value, low=float(low), high=float(high))

    def within(self, best: str, other: str) -> bool:
        """Whether `other` is within one standard error of `best`, both drawn together."""
        gap = self.replicates[best] - self.replicates[other]
        finite = gap[1:][np.isfinite(gap[1:])]
        return bool(gap[0] <= np.std(finite) + ROUNDING)


def by_gradient(state: SweepState, names: list[str], seed: int) -> Scores | None:
    """Scale-free efficiency; None where rewards are unknown or their gradient is lost in noise."""
    sizes = state.cluster(REFERENCE, "signals")
    if not sizes.any():
        return None
    sums = state.cluster(REFERENCE, "gradient")
    reference = Reference(draws(len(sizes), seed), sizes, sums, len(state.steps))
    if not resolved(reference.square):
        return None
    gradients = {name: state.cluster(name, "gradient") for name in names}
    return Scores({name: reference.efficiency(each) for name, each in gradients.items()})


def by_bound(state: SweepState, names: list[str], seed: int) -> Scores:
    """1 - bound / 2 of each candidate."""
    counts = draws(len(state.keyed.keys), seed)
    return Scores({name: 1.0 - 0.5 * bias_bound(state, name, counts) for name in names})


def bias_bound(state: SweepState, name: str, counts: Array) -> Array:
    """E|ratio - weight| over whole sequences, given E[ratio] = 1; [replicates], from 0 to 2.

    1 - E[w] + 2 E[(w - ratio)+], w the mean weight of a sequence's tokens, 0 if rejected. Bounds
    the bias of the mean of any |f| <= 1. For sequence TIS it is the truncation loss, for MIS the
    rejected mass, without weights twice the total variation. Written so that no ratio beyond the
    bounds comes in: it can be estimated where the tail cannot. After theory.md 2.7 and 4.3 step 4.
    """
    sequences = counts @ state.cluster("", "sequences")
    weights = counts @ state.cluster(name, "means")[:, 0]
    over = counts @ state.cluster(name, "over")
    return np.maximum(1.0 - weights / sequences, 0.0) + 2.0 * over / sequences
