"""First and second moments of several policies' log-probs, as sums by cluster that add up.

Log-probs are stored as differences from the first policy's, so that large numbers do not cancel.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.results import MetricValue
from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.ratios import Array
from rcdiag.table.token_batch import TokenBatch
from rcdiag.table.trajectories import segment_sum


class Moments(Struct, frozen=True):
    """Sums by cluster over unmasked tokens: count, first log-prob, differences, products."""

    policies: tuple[str, ...]
    sums: ClusterSums

    @property
    def tokens(self) -> Array:
        """Return the number of tokens of each cluster, [clusters]."""
        return self.sums.sums[:, 0]

    def log_prob(self, policy: str) -> Array:
        """Return the summed log-probs of a policy, nats, [clusters]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.sums.sums[:, 1] + self.difference(policy)

    def difference(self, policy: str) -> Array:
        """Return the sum of a policy's log-probs minus the first policy's, nats, [clusters]."""
        return self.sums.sums[:, 2 + self.policies.index(policy)]

    def product(self, one: str, other: str) -> Array:
        """Return summed products of two policies' differences from the first, nats^2."""
        count = len(self.policies)
        at = 2 + count + self.policies.index(one) * count + self.policies.index(other)
        return self.sums.sums[:, at]

    def squares(self, one: str, other: str) -> Array:
        """Return the sum of squared log-ratios of two policies, nats^2, [clusters]."""
        with np.errstate(over="ignore", invalid="ignore"):
            crossed = 2.0 * self.product(one, other)
            return np.maximum(self.product(one, one) + self.product(other, other) - crossed, 0.0)


def moments_of(batch: TokenBatch) -> Moments:
    """Compute the moments of all policies of a batch; infinities are treated as NaN."""
    policies, lengths = tuple(batch.log_probs), batch.lengths
    finite = [
        np.where(np.isfinite(log_probs), log_probs, np.nan)
        for log_probs in batch.log_probs.values()
    ]
    columns = [lengths.astype(np.float64), segment_sum(finite[0], lengths)]
    with np.errstate(over="ignore", invalid="ignore"):  # overflow gives inf or NaN
        differences = [log_probs - finite[0] for log_probs in finite]
        columns += [segment_sum(values, lengths) for values in differences]
        columns += [
            segment_sum(one * other, lengths) for one in differences for other in differences
        ]
    return Moments(policies, cluster_sums(batch.cluster, np.stack(columns, axis=1)))


def mean(sums: Array, counts: Array, *, floor: float | None = None) -> MetricValue:
    """Return sum / sum over clusters with its cluster-robust interval; None for 0 / 0."""
    if not counts.any():
        return MetricValue(value=None)
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(sums.sum() / counts.sum())
        low, high = (float(end[0]) for end in ratio_interval(sums[:, None], counts[:, None]))
    if not (np.isfinite(low) and np.isfinite(high)):
        return MetricValue(value=value)
    return MetricValue(value=value, low=low if floor is None else max(low, floor), high=high)
