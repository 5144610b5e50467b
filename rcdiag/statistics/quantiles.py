"""Quantiles are read off streams: of |log_ratio| with intervals, of other numbers without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.intervals import NONE, Interval, errors_and_reaches, influences
from rcdiag.statistics.ratios import Array

# Bins are cut from the bits of a float32: 1,024 to each factor of two, from 2^-40 to 2^31. Their
# middle is within 0.05% of every value in them.
_SHIFT = 13
_LOWEST, _HIGHEST = ((np.array([2.0**power], np.float32).view(np.uint32)) for power in (-40, 31))
_FIRST = int(_LOWEST[0] >> _SHIFT)
BINS = int(_HIGHEST[0] >> _SHIFT) - _FIRST
EDGES = (np.arange(_FIRST, _FIRST + BINS + 1, dtype=np.uint32) << _SHIFT).view(np.float32)
# For intervals each cluster has counts too, in coarse bins: two to each factor of two.
_COARSE = 512
COARSE_BINS = -(-BINS // _COARSE)
# The sketches of a table together keep up to so many single values, then counts.
VALUES_HELD = 1 << 22


@dataclass(frozen=True, slots=True)
class Sketch:
    """Positive numbers: all of them while they are few, then counts in fine bins."""

    raw: tuple[Array, ...] | None = ()
    counts: NDArray[np.int64] | None = None  # of BINS, where the values are not kept

    @property
    def held(self) -> int:
        """Return how many single values are in memory."""
        return sum(map(len, self.raw or ()))

    def collapsed(self) -> Sketch:
        """Return the numbers as counts."""
        if self.raw is None:
            return self
        counts = np.zeros(BINS, np.int64)
        for values in self.raw:
            counts += np.bincount(_bin(values), minlength=BINS)
        return Sketch(None, counts)

    def __add__(self, other: Sketch) -> Sketch:
        """Join all values of both; the result holds counts if either does."""
        if self.raw is not None and other.raw is not None:
            return Sketch((*self.raw, *other.raw))
        one, two = self.collapsed().counts, other.collapsed().counts
        assert one is not None
        assert two is not None
        return Sketch(None, one + two)


def bounded_sketches(sketches: Sequence[Sketch]) -> list[Sketch]:
    """Bound sketches that are kept together: all become counts above VALUES_HELD values.

    One that holds counts makes counts of the others too, so that it does not matter how a table
    is cut.
    """
    counted = any(sketch.raw is None for sketch in sketches)
    if counted or sum(sketch.held for sketch in sketches) > VALUES_HELD:
        return [sketch.collapsed() for sketch in sketches]
    return list(sketches)


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """|log_ratio| of tokens, and coarse counts of it by cluster."""

    sketch: Sketch
    clusters: ClusterSums

    @classmethod
    def of(cls, size: Array, cluster: NDArray[np.uint64], lengths: NDArray[np.int64]) -> Magnitudes:
        coarse = _bin(size) // _COARSE
        cells = np.repeat(np.arange(len(lengths)) * COARSE_BINS, lengths) + coarse
        rows = np.bincount(cells, minlength=len(lengths) * COARSE_BINS).astype(np.float64)
        return cls(Sketch((size,)), cluster_sums(cluster, rows.reshape(len(lengths), COARSE_BINS)))

    def __add__(self, other: Magnitudes) -> Magnitudes:
        return Magnitudes(self.sketch + other.sketch, self.clusters + other.clusters)


def _bin(size: Array) -> NDArray[np.int64]:
    """Return the index of each |log_ratio|; larger values and NaN are in the outermost bin."""
    with np.errstate(over="ignore"):
        rounded = size.astype(np.float32)
    bits = (rounded.view(np.uint32) >> _SHIFT).astype(np.int64)
    return np.clip(bits - _FIRST, 0, BINS - 1)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Values in order, weighted by how often they come: for quantiles and top sums."""

    values: Array  # ascending
    ends: NDArray[np.int64]  # how many values there are up to each

    @classmethod
    def of(cls, sketch: Sketch) -> Ordered:
        if sketch.raw is not None:
            values = np.sort(np.concatenate(sketch.raw))
            return cls(values, np.arange(1, len(values) + 1))
        assert sketch.counts is not None
        filled = np.flatnonzero(sketch.counts)
        middle = (EDGES[filled].astype(np.float64) + EDGES[filled + 1]) / 2.0
        # The first bin takes zeros and all below 2^-40, which is 0 for our purposes.
        return cls(np.where(filled == 0, 0.0, middle), np.cumsum(sketch.counts[filled]))

    @property
    def count(self) -> int:
        return int(self.ends[-1])

    def quantile(self, share: float) -> float:
        """Return a quantile, linear between neighbours, as numpy's default."""
        at = share * (self.count - 1)
        below, weight = int(at), at - int(at)
        low, high = (self._at(index) for index in (below, min(below + 1, self.count - 1)))
        # Not low + weight * (high - low): between equal infinities that is no number.
        return low if low == high else low + weight * (high - low)

    def _at(self, index: int) -> float:
        return float(self.values[np.searchsorted(self.ends, index, side="right")])

    def top_share_of_squares(self, share: float) -> float:
        """Return the part of sum |log_ratio|^2 that comes from the `share` largest values."""
        squares = np.square(self.values)
        counts = np.diff(self.ends, prepend=0)
        total = float((squares * counts).sum())
        if not 0.0 < total < np.inf:  # all equal, or an infinite one that holds everything
            return np.nan
        top_count = max(round(share * self.count), 1)
        from_top = np.minimum(np.maximum(top_count - (self.count - self.ends), 0), counts)
        return float((squares * from_top).sum()) / total


def quantile_interval(ordered: Ordered, clusters: ClusterSums, share: float) -> Interval:
    """Return the quantiles at both ends of the 95% interval of the share that is below.

    How far that interval reaches down and up is known at the coarse bin edges; its log is
    interpolated over the logit of the share. None where no edge tells the clusters apart. Source:
    Woodruff 1952, JASA 47.
    """
    from scipy.special import logit

    counts = clusters.sums
    if len(counts) < 2:
        return NONE
    of_clusters = counts.sum(axis=1, keepdims=True)
    below = np.cumsum(counts, axis=1)
    reached = below.sum(axis=0) / of_clusters.sum()
    influence, number = influences(below, np.broadcast_to(of_clusters, below.shape))
    inside = np.flatnonzero((reached > 0.0) & (reached < 1.0) & (np.ptp(influence, axis=0) > 0.0))
    if not len(inside):
        return NONE
    above = int(np.searchsorted(reached[inside], share))
    inside = inside[max(above - 1, 0) : above + 1]  # the nearest on either side
    error, down, up = errors_and_reaches(influence[:, inside], number[inside])
    reach = [
        np.exp(np.interp(logit(share), logit(reached[inside]), np.log(reaches * error)))
        for reaches in (down, up)
    ]
    low, high = np.clip([share - reach[0], share + reach[1]], 0.0, 1.0)
    return ordered.quantile(float(low)), ordered.quantile(float(high))
