"""Spearman's correlation of both policies' probabilities is estimated from a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.frozen import dataclass
from rcdiag.statistics.intervals import NONE, Interval, jackknife_interval
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array
from rcdiag.table.hashing import mixed

# Confident and hopeless tokens make any correlation near 1; between these both sides must choose.
LOWEST, HIGHEST = 0.05, 0.95
# The jackknife leaves out one of so many groups of clusters at a time.
GROUPS = 20
_WHOLE = 2**32


@dataclass(frozen=True, slots=True)
class RankSample:
    """Probabilities of tokens that both policies give between LOWEST and HIGHEST.

    All of them, or, when they become too many, those with a hash below `limit`: a sample that
    does not depend on how the table is cut or ordered.
    """

    behavior: Array
    target: Array
    key: NDArray[np.uint32]
    group: NDArray[np.uint8]  # of clusters, below GROUPS
    limit: int = _WHOLE

    def __len__(self) -> int:
        return len(self.key)

    def __add__(self, other: RankSample) -> RankSample:
        """Join the tokens of both, thinned as the thinner one."""
        return joined_samples([self, other])

    def take(self, tokens: NDArray[np.bool_]) -> RankSample:
        """Take some of the tokens."""
        at = np.flatnonzero(tokens)
        return RankSample(
            self.behavior.take(at),
            self.target.take(at),
            self.key.take(at),
            self.group.take(at),
            self.limit,
        )

    def below(self, limit: int) -> int:
        """Count the tokens that a limit would leave."""
        return len(self) if limit >= self.limit else int((self.key < limit).sum())

    def thinned(self, limit: int) -> RankSample:
        if limit >= self.limit:
            return self
        return replace(self.take(self.key < limit), limit=limit)


def joined_samples(samples: Sequence[RankSample]) -> RankSample:
    """Join the tokens of samples, thinned as the thinnest one."""
    limit = min(sample.limit for sample in samples)
    thinned = [sample.thinned(limit) for sample in samples]
    return RankSample(
        np.concatenate([sample.behavior for sample in thinned]),
        np.concatenate([sample.target for sample in thinned]),
        np.concatenate([sample.key for sample in thinned]),
        np.concatenate([sample.group for sample in thinned]),
        limit,
    )


def rank_sample(pair: PolicyPair) -> RankSample:
    """Return the tokens of a pair that qualify."""
    return sample_by_sequence(pair)[0]


def sample_by_sequence(pair: PolicyPair) -> tuple[RankSample, NDArray[np.int64]]:
    """Return the tokens of a pair that qualify, and how many each sequence has of them."""
    low, high = np.log(LOWEST), np.log(HIGHEST)
    b, t = pair.values.behavior, pair.values.target
    at = np.flatnonzero((b > low) & (b < high) & (t > low) & (t < high))
    groups = (pair.tokens.cluster % np.uint64(GROUPS)).astype(np.uint8)
    ends = np.searchsorted(at, np.cumsum(pair.lengths))
    counts = np.diff(ends, prepend=0)
    b, t = b.take(at), t.take(at)
    return RankSample(np.exp(b), np.exp(t), _hash(b, t), np.repeat(groups, counts)), counts


def _hash(behavior: Array, target: Array) -> NDArray[np.uint32]:
    """Return 32 well-mixed bits of each pair of values."""
    words = behavior.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ target.view(np.uint64)
    return (mixed(words) >> np.uint64(32)).astype(np.uint32)


def spearman(sample: RankSample) -> tuple[float, Interval]:
    """Return the rank correlation with its 95% interval; NaN where a side is constant.

    The interval is that of a delete-a-group jackknife over groups of clusters. Source: Kott 2001,
    Journal of Official Statistics 17(4).
    """
    sides = [
        np.unique(values, return_inverse=True)[1] for values in (sample.behavior, sample.target)
    ]
    value = _spearman(*sides)
    groups = np.unique(sample.group)
    if not abs(value) < 1.0 or len(groups) < 2:
        return value, NONE
    kept = (sample.group != group for group in groups)
    left_out = np.array([_spearman(*(side[keep] for side in sides)) for keep in kept])
    return value, jackknife_interval(value, left_out, 1.0)


def _spearman(behavior: NDArray[np.int64], target: NDArray[np.int64]) -> float:
    """Return the rank correlation; the sides are places among the different values, ascending."""
    one, other = _centred_ranks(behavior), _centred_ranks(target)
    squares = np.square(one).sum() * np.square(other).sum()
    return float((one * other).sum() / np.sqrt(squares)) if squares > 0.0 else np.nan


def _centred_ranks(places: NDArray[np.int64]) -> Array:
    """Return ranks less their mean; equal values share the mean of theirs."""
    ties = np.bincount(places)
    return (np.cumsum(ties) - 0.5 * (ties + len(places)))[places]
