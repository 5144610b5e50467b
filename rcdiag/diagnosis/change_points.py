"""Change points of a series with one number per step, with 95% intervals, by least squares.

Three shapes are compared for a stretch of steps: constant; a jump at a step, or two; and a bend,
from which on the number grows or falls steadily (over the whole stretch, a drift). Where a jump is
found, both sides of it are searched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array
from rcdiag.diagnosis.thresholds import WITH_A_CHOICE
from rcdiag.statistics.metrics.tail import NORMAL_REACH

# A shape must lower the sum of squares by this many times the noise variance, which is twice the
# log-likelihood that it gains: a jump is tried at each step.
LEAST_GAIN = 2.0 * WITH_A_CHOICE
# 95% quantile of chi-squared with one degree of freedom: steps whose gain is at most this much
# smaller than the best one are in the interval of a change.
INTERVAL = NORMAL_REACH**2
# (pace, power): after a bend a series grows as log(1 + (steps since / pace)^power), as log k3 does
# where weights drift apart, in independent directions or in one, and as the log of a mean
# |log_ratio| does if one update moves it by many times rounding; or by a straight line.
GROWTHS = ((1.0, 1.0), (4.0, 2.0), (0.02, 0.5))
FEWEST = 6  # steps that a series needs to estimate its noise
MAD = NormalDist().inv_cdf(0.75)  # median of |x| of a standard normal x


class ChangePoint(Struct, frozen=True, kw_only=True):
    """A change of a series, within the stretch from `begin` to `end` that has no other change.

    All positions are indices of steps.
    """

    at: int  # the first changed step
    low: int  # 95% interval of `at`
    high: int
    shape: str  # `jump` or `creep`
    gain: float  # in variances of the noise
    begin: int
    settled: int  # the level after the change is that from here to `end`; of a bend, a quarter
    end: int

    def levels(self, values: Array) -> tuple[float, float]:
        """Return the medians of the series' values, on any scale, before and after."""
        before = values[self.begin : max(self.at, self.begin + 1)]
        return float(np.median(before)), float(np.median(values[self.settled : self.end]))


def noise_of(y: Array) -> float:
    """Return the standard deviation of the noise of a series, robust to its changes.

    It is estimated from the median size of the differences between neighbouring steps, which
    neither a jump nor a drift enlarges.
    """
    away = np.abs(np.diff(y))
    size = float(np.median(away)) / (MAD * np.sqrt(2.0))
    return float(max(size, 1e-3 * float(np.ptp(y)), 1e-12))


def change_points(
    y: Array, error: Array | None, least: float, fewest: int = 2
) -> list[ChangePoint]:
    """Return the changes of a series that are larger than `least`, in the order of their steps.

    `error` [steps] is the standard deviation of the noise at each step; without it the noise is
    estimated in each stretch between changes, since a larger mismatch is most often a noisier one.
    At least `fewest` steps follow a change.
    """
    weight = None if error is None else 1.0 / error**2
    found = _within(y, weight, fewest, 0, len(y))
    while found:
        found = _divided(found, len(y))
        moved = [abs(float(np.subtract(*point.levels(y)))) for point in found]
        smallest = int(np.argmin(moved))
        if moved[smallest] >= least:
            break
        del found[smallest]
    return found


def _divided(found: Sequence[ChangePoint], count: int) -> list[ChangePoint]:
    """Cut the stretch and the interval of each change at its neighbours; `count` steps in all.

    Without that, the interval of one end of a plateau may include the other end, which fits a
    single jump as well. A drift may begin at the step of a jump.
    """
    divided = []
    for before, point in zip([None, *found], found, strict=False):
        begin = 0 if before is None else before.at
        end = min([count, *(one.at for one in found if one.at > point.at)])
        low, high = max(point.low, min(begin + 1, point.at)), min(point.high, end - 1)
        divided.append(replace(point, begin=begin, low=low, high=high, end=end))
    return divided


def _within(y: Array, weight: Array | None, fewest: int, begin: int, end: int) -> list[ChangePoint]:
    """Return the changes at steps with indices from `begin` to `end`, `end` not included.

    Small ones are returned too: one end of a plateau alone may leave the median unchanged. Jumps
    are tried at every step, so that the first changed one is named. If fewer than `fewest` steps at
    the end of the series have jumped, that is no change yet, and the search goes on without them.
    """
    part = y[begin:end]
    if len(part) < 2 * fewest or (weight is None and len(part) < FEWEST):
        return []
    of_part = np.full(len(part), noise_of(part) ** -2.0) if weight is None else weight[begin:end]
    # Values that are infinite or near 1e200 have no finite sum of squares: their gain is set to 0.
    with np.errstate(all="ignore"):
        jumps = np.nan_to_num(jump_gains(part, of_part))
        bends = np.nan_to_num(bend_gains(part, of_part, fewest))
        at = int(np.argmax(jumps))
        # A bend must fit better than two jumps together, not only better than the larger one.
        sides = (slice(None, at), slice(at, None))
        second = max(jump_gains(part[one], of_part[one]).max(initial=0.0) for one in sides)
    creeps = bends.max() > jumps[at] + second
    if not creeps and end == len(y) and len(part) - at < fewest and jumps[at] >= LEAST_GAIN:
        rest = begin + at
        return _within(y[:rest], None if weight is None else weight[:rest], fewest, begin, rest)
    gains = bends if creeps else jumps
    at = int(np.argmax(gains))
    near = begin + np.flatnonzero(gains >= gains[at] - INTERVAL)
    found = ChangePoint(
        at=begin + at,
        low=int(near[0]),
        high=int(near[-1]),
        shape="creep" if creeps else "jump",
        gain=float(gains[at]),
        begin=begin,
        settled=end - max(len(part) // 4, 1) if creeps else begin + at,
        end=end,
    )
    if found.gain < LEAST_GAIN:
        return []
    if creeps:
        return [found]
    return [
        *_within(y, weight, fewest, begin, found.at),
        found,
        *_within(y, weight, fewest, found.at, end),
    ]


def jump_gains(y: Array, weight: Array) -> Array:
    """Return how much a jump at each index reduces the weighted sum of squares about the mean."""
    gain = np.zeros(len(y))
    before, after = np.cumsum(weight)[:-1], np.cumsum(weight[::-1])[::-1][1:]
    left = np.cumsum(weight * (y - np.average(y, weights=weight)))[:-1] if len(y) > 1 else gain[1:]
    gain[1:] = left**2 * (1.0 / before + 1.0 / after)
    return gain


def bend_gains(y: Array, weight: Array, fewest: int) -> Array:
    """Return how much a bend at each index reduces the weighted sum of squares about the mean.

    The ramp that begins at an index is the same curve for each, moved, so that sums over it are
    correlations: those at all indices take as much time as a few in a loop.
    """
    gain = np.zeros(len(y))
    count = max(len(y) - 2 * fewest, 0)
    centred = weight * (y - np.average(y, weights=weight))
    since = np.arange(len(y), dtype=np.float64)
    grown = [np.log1p((since / pace) ** power) for pace, power in GROWTHS]

    def sums(values: Array, ramp: Array) -> NDArray[np.floating]:
        return np.correlate(values, ramp, "full")[len(y) - 1 :][:count]

    for ramp in (since, *grown):
        about_mean = sums(weight, ramp**2) - sums(weight, ramp) ** 2 / weight.sum()
        gain[:count] = np.fmax(gain[:count], sums(centred, ramp) ** 2 / about_mean)
    return gain
