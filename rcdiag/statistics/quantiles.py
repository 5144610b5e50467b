"""Quantiles from a stream of values: of |log_ratio| with intervals, of other numbers without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.statistics.clusters import ClusterSums, content_order
from rcdiag.statistics.intervals import (
    NONE,
    Interval,
    errors_and_reaches,
    influences,
    too_few,
)
from rcdiag.statistics.ratios import Array

S = TypeVar("S")

# Bins are defined by the leading bits of a float32: 1,024 per factor of two, from 2^-40 to 2^31.
# The middle of a bin is within 0.05% of every value in it.
_SHIFT = 13
_LOWEST, _HIGHEST = ((np.array([2.0**power], np.float32).view(np.uint32)) for power in (-40, 31))
_FIRST = int(_LOWEST[0] >> _SHIFT)
BINS = int(_HIGHEST[0] >> _SHIFT) - _FIRST
EDGES = (np.arange(_FIRST, _FIRST + BINS + 1, dtype=np.uint32) << _SHIFT).view(np.float32)
# For intervals, each cluster also has counts in coarse bins: two per factor of two.
_COARSE = 512
COARSE_BINS = -(-BINS // _COARSE)
# The sketches of a table together keep at most this many single values; then they become counts.
VALUES_HELD = 1 << 22
COUNTED_AT_ONCE = 1 << 16


class Sketch(Struct, frozen=True):
    """A distribution of positive numbers: all values while they are few, then counts in bins."""

    raw: tuple[Array, ...] | None = ()
    counts: NDArray[np.int64] | None = None  # [BINS], if the values are not kept

    @property
    def held(self) -> int:
        """Return the number of single values in memory."""
        return sum(map(len, self.raw or ()))

    def collapsed(self) -> Sketch:
        """Return the distribution as counts."""
        if self.raw is None:
            return self
        counts = np.zeros(BINS, np.int64)
        for values in self.raw:
            for start in range(0, len(values), COUNTED_AT_ONCE):
                # NaN and values beyond the bins go to the outermost bins.
                bins = _float32_bits(values[start : start + COUNTED_AT_ONCE], _SHIFT, _FIRST, BINS)
                counts += np.bincount(bins, minlength=BINS)
        return Sketch(None, counts)

    @classmethod
    def merged(cls, sketches: Sequence[Sketch]) -> Sketch:
        """Combine sketches; the result holds counts if any of them does."""
        raw = [sketch.raw for sketch in sketches if sketch.raw is not None]
        if len(raw) == len(sketches):
            return cls(tuple(values for held in raw for values in held))
        counts = [sketch.collapsed().counts for sketch in sketches]
        return cls(None, np.sum([part for part in counts if part is not None], axis=0))


def in_short(state: S) -> S:
    """Convert sketches in a state to counts if these take less memory than the values.

    Sketches are searched for in fields of structs and values of dictionaries.
    """
    if isinstance(state, Sketch):
        return state.collapsed() if state.held > BINS else state  # type: ignore[return-value]
    if isinstance(state, dict):
        return type(state)({key: in_short(value) for key, value in state.items()})
    if isinstance(state, Struct):
        fields = {name: in_short(getattr(state, name)) for name in state.__struct_fields__}
        return replace(state, **fields)
    return state


def bounded_sketches(sketches: Sequence[Sketch]) -> list[Sketch]:
    """Convert sketches that are kept together to counts, if they hold more than VALUES_HELD values.

    If one of them already holds counts, the others are converted too, so that the result does not
    depend on how a table is split.
    """
    counted = any(sketch.raw is None for sketch in sketches)
    if counted or sum(sketch.held for sketch in sketches) > VALUES_HELD:
        return [sketch.collapsed() for sketch in sketches]
    return list(sketches)


class Magnitudes(Struct, frozen=True):
    """|log_ratio| of tokens, and coarse counts of it by cluster."""

    sketch: Sketch
    clusters: ClusterSums


def coarse_counts(size: Array, lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Count each sequence's |log_ratio| in coarse bins, [sequences, COARSE_BINS]."""
    shift = _SHIFT + _COARSE.bit_length() - 1
    coarse = _float32_bits(size, shift, _FIRST // _COARSE, COARSE_BINS)
    cells = np.repeat(np.arange(len(lengths)) * COARSE_BINS, lengths)
    cells += coarse
    counts = np.bincount(cells, minlength=len(lengths) * COARSE_BINS)
    # float32 is exact, because a sequence has fewer than 2^24 tokens.
    return counts.astype(np.float32).reshape(len(lengths), COARSE_BINS)


def _float32_bits(size: Array, shift: int, first: int, bins: int) -> NDArray[np.int32]:
    """Return the leading bits of positive numbers as float32, minus `first`, clipped to bins."""
    with np.errstate(over="ignore"):
        bits = size.astype(np.float32).view(np.int32)
    bits >>= shift
    bits -= first
    bits[size != size] = bins - 1  # NaN may have any sign
    return np.clip(bits, 0, bins - 1, out=bits)


class Ordered(Struct, frozen=True):
    """Sorted values with multiplicities, for quantiles and sums of the largest values."""

    values: Array  # ascending
    ends: NDArray[np.int64] | None  # cumulative number of values; None if each occurs once

    @classmethod
    def of(cls, sketch: Sketch) -> Ordered:
        if sketch.raw is not None:
            values = np.concatenate(sketch.raw)
            values.sort()
            return cls(values, None)
        assert sketch.counts is not None
        filled = np.flatnonzero(sketch.counts)
        middle = (EDGES[filled].astype(np.float64) + EDGES[filled + 1]) / 2.0
        # The first bin holds zeros and values below 2^-40, which are treated as 0.
        return cls(np.where(filled == 0, 0.0, middle), np.cumsum(sketch.counts[filled]))

    @property
    def count(self) -> int:
        return len(self.values) if self.ends is None else int(self.ends[-1])

    def quantile(self, share: float) -> float:
        """Return a quantile with linear interpolation, as numpy by default."""
        at = share * (self.count - 1)
        below, weight = int(at), at - int(at)
        places = np.array([below, min(below + 1, self.count - 1)])
        if self.ends is not None:
            places = np.searchsorted(self.ends, places, side="right")
        low, high = map(float, self.values[places])
        # low + weight * (high - low) would be NaN between equal infinities.
        return low if low == high else low + weight * (high - low)

    def top_share_of_squares(self, share: float) -> float:
        """Return the fraction of sum |log_ratio|^2 that is due to the `share` largest values.

        NaN if all values are 0, or if the sum is infinite.
        """
        below = self.count - max(round(share * self.count), 1)
        if self.ends is None:
            total, top = (float(np.dot(part, part)) for part in (self.values, self.values[below:]))
            return top / total if 0.0 < total < np.inf else np.nan
        squares = np.square(self.values) * np.diff(self.ends, prepend=0)
        total = float(squares.sum())
        if not 0.0 < total < np.inf:
            return np.nan
        first = int(np.searchsorted(self.ends, below, side="right"))  # only a part of it counts
        part = np.square(self.values[first]) * (self.ends[first] - below)
        return float(part + squares[first + 1 :].sum()) / total


class SharesBelow(Struct, frozen=True):
    """Shares of tokens below those coarse bin edges at which clusters differ, ascending."""

    reached: Array  # [edges] share of tokens below each edge
    influence: Array  # [clusters, edges] influence of each cluster on each share
    number: NDArray[np.int64]  # [edges] number of clusters
    tokens: Array  # [clusters, 1] tokens of each cluster

    @classmethod
    def of(cls, clusters: ClusterSums) -> SharesBelow:
        """Compute the shares from coarse counts by cluster; empty with fewer than two clusters."""
        counts = clusters.sums[content_order(clusters.sums)]
        if len(counts) < 2:
            return cls(np.zeros(0), np.zeros((0, 0)), np.zeros(0, np.int64), np.zeros((0, 1)))
        of_clusters = counts.sum(axis=1, keepdims=True)
        below = np.cumsum(counts, axis=1)
        reached = below.sum(axis=0) / of_clusters.sum()
        influence, number = influences(below, np.broadcast_to(of_clusters, below.shape))
        between = (reached > 0.0) & (reached < 1.0) & (np.ptp(influence, axis=0) > 0.0)
        return cls(reached[between], influence[:, between], number[between], of_clusters)


def quantile_interval(ordered: Ordered, below: SharesBelow, share: float) -> Interval:
    """Return the 95% interval of a quantile, from the interval of the share of tokens below it.

    The share's interval is computed at the coarse bin edges; the logs of its distances are
    interpolated over the logit of the share. NONE if clusters do not differ at any edge, or if they
    are too few. Source: Woodruff 1952, JASA 47.
    """
    if not len(below.reached) or too_few(below.tokens[:, 0]):
        return NONE
    above = int(np.searchsorted(below.reached, share))
    nearest = slice(max(above - 1, 0), above + 1)  # the edges on either side
    influence = below.influence[:, nearest]
    tokens = np.broadcast_to(below.tokens, influence.shape)
    error, down, up = errors_and_reaches(influence, below.number[nearest], tokens)
    reach = [
        np.exp(np.interp(_logit(share), _logit(below.reached[nearest]), np.log(reaches * error)))
        for reaches in (down, up)
    ]
    low, high = np.clip([share - reach[0], share + reach[1]], 0.0, 1.0)
    return ordered.quantile(float(low)), ordered.quantile(float(high))


def _logit(share: Array | float) -> Array:
    """Return log(share / (1 - share))."""
    logit: Array = np.log(share) - np.log1p(-np.asarray(share))
    return logit
