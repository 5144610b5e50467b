"""Spearman's rank correlation of both policies' probabilities, estimated from a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.intervals import NONE, Interval, jackknife_interval
from rcdiag.statistics.merging import merge_fields
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array
from rcdiag.table.hashing import mixed
from rcdiag.table.token_batch import RowFrame

# Tokens that are almost certain or almost impossible would make any correlation near 1.
LOWEST, HIGHEST = 0.05, 0.95
_WHOLE = 2**32


class RankSample(RowFrame, frozen=True):
    """Probabilities of tokens to which both policies give between LOWEST and HIGHEST.

    All such tokens, or, if there are too many, those with a hash below `limit`: a sample that does
    not depend on how the table is split or ordered.
    """

    behavior: Array
    target: Array
    key: NDArray[np.uint32]
    cluster: NDArray[np.uint64]
    limit: int = _WHOLE

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def merged(cls, samples: Sequence[RankSample]) -> RankSample:
        """Combine samples, after thinning all to the smallest limit."""
        limit = min(sample.limit for sample in samples)
        return merge_fields([sample.thinned(limit) for sample in samples], limit=limit)

    def below(self, limit: int) -> int:
        """Count the tokens that would remain under a limit."""
        return len(self) if limit >= self.limit else int((self.key < limit).sum())

    def thinned(self, limit: int) -> RankSample:
        if limit >= self.limit:
            return self
        kept = self.key < limit
        return RankSample(
            self.behavior[kept], self.target[kept], self.key[kept], self.cluster[kept], limit
        )


def rank_sample(pair: PolicyPair) -> RankSample:
    """Return all tokens of a pair in that range."""
    low, high = np.log(LOWEST), np.log(HIGHEST)
    b, t = pair.values.behavior, pair.values.target
    at = np.flatnonzero((b > low) & (b < high) & (t > low) & (t < high))
    sequence = np.searchsorted(np.cumsum(pair.lengths), at, side="right")
    b, t = b.take(at), t.take(at)
    words = b.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ t.view(np.uint64)
    key = (mixed(words) >> np.uint64(32)).astype(np.uint32)  # a 32-bit hash of each pair
    return RankSample(np.exp(b), np.exp(t), key, pair.tokens.cluster[sequence])


def spearman(sample: RankSample) -> tuple[float, Interval]:
    """Return the rank correlation with its 95% interval; NaN if one side is constant.

    The interval is a jackknife's, using each cluster's first-order influence on the correlation.
    """
    if not len(sample):
        return np.nan, NONE
    one, other = (_Ranked.of(values) for values in (sample.behavior, sample.target))
    scale = np.sqrt(one.variance * other.variance)
    if not scale > 0.0:
        return np.nan, NONE
    value = float(np.mean(one.ranks * other.ranks) / scale)
    _, cluster = np.unique(sample.cluster, return_inverse=True)
    sizes = np.bincount(cluster).astype(np.float64)
    if not abs(value) < 1.0 or len(sizes) < 2:
        return value, NONE
    shared = one.ranks * other.ranks + one.above(other.ranks) + other.above(one.ranks)
    own = sum(
        (np.square(side.ranks) + 2.0 * side.above(side.ranks)) / side.variance
        for side in (one, other)
    )
    # The constants of both influences cancel.
    added = np.bincount(cluster, shared / scale - 0.5 * value * own)
    left_out = value - added / (len(sample) - sizes)
    # Sorted by value: then sums do not depend on the names of clusters, to the last bit.
    order = np.lexsort((sizes, left_out))
    return value, jackknife_interval(value, left_out[order], 1.0, sizes[order])


class _Ranked(Struct, frozen=True):
    """One side of a rank correlation: indices among its distinct values, and centred ranks."""

    places: NDArray[np.int64]  # ascending
    ranks: Array  # as a fraction of the tokens, minus the mean; equal values share a rank

    @classmethod
    def of(cls, values: Array) -> _Ranked:
        places = np.unique(values, return_inverse=True)[1]
        ties = np.bincount(places)
        ranks = (np.cumsum(ties) - 0.5 * (ties + len(places))) / len(places)
        return cls(places, ranks[places])

    @property
    def variance(self) -> float:
        return float(np.mean(np.square(self.ranks)))

    def above(self, values: Array) -> Array:
        """Return for each token the sum of `values` over tokens ranked above it, per token.

        Ties count half. This is the influence of a token on the mean of ranks times `values`.
        """
        sums = np.bincount(self.places, values)
        above: Array = (sums.sum() - np.cumsum(sums) + 0.5 * sums) / len(values)
        return above[self.places]
