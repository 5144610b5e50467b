"""Where a series of numbers by step moves: change points with an interval, by least squares.

Three shapes are compared for a stretch of steps: constant; a jump at a step, or two; and a bend,
from which on the number grows or falls steadily (over the whole stretch, a drift). After a jump
both sides are looked at again.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A shape must lower the sum of squares by this many times the noise's variance. A jump is tried at
# each of n steps: the largest of n chi-squared values with one degree of freedom stays below this
# in all but one of some thousand series of 200 steps without a change.
LEAST_GAIN = 24.0
# Chi-squared with one degree of freedom, 95%: steps with less are in the interval of a change.
INTERVAL = 3.84
POWERS = (0.5, 1.0)  # of the steps since a bend
FEWEST = 6  # steps of a series whose noise is estimated
MAD = 0.6745  # median of |x| of a standard normal x


class ChangePoint(Struct, frozen=True, kw_only=True):
    """A movement of a series; `begin` and `end` are those of the stretch without another one.

    All are indices of steps.
    """

    at: int  # from which on
    low: int  # 95% interval of `at`
    high: int
    shape: str  # `jump` or `creep`
    gain: float  # in variances of the noise
    begin: int
    settled: int  # the level after is that from here to `end`: of a bend, the last quarter
    end: int

    def levels(self, values: Array) -> tuple[float, float]:
        """Return the medians of the series' values, on any scale, before and after."""
        before = values[self.begin : max(self.at, self.begin + 1)]
        return float(np.median(before)), float(np.median(values[self.settled : self.end]))


def noise_of(y: Array) -> float:
    """Return the standard deviation of a series without its movements.

    It is that of the differences of neighbouring steps, by their median, which neither a jump nor a
    drift enlarges.
    """
    away = np.abs(np.diff(y))
    size = float(np.median(away)) / (MAD * np.sqrt(2.0))
    return float(max(size, 1e-3 * float(np.ptp(y)), 1e-12))


def change_points(y: Array, error: Array, least: float, fewest: int = 2) -> list[ChangePoint]:
    """Return the movements of a series by more than `least`, in the order of their steps.

    `error` [steps] is the standard deviation of the noise at each step; `fewest` steps are on each
    side of a change.
    """
    found = _within(y, 1.0 / error**2, least, fewest, 0, len(y))
    # Changes that were found later divide the stretch of one before them, and its interval: either
    # end of a plateau fits a single jump. A drift may begin at the step of a jump.
    steps = [point.at for point in found]
    divided = []
    for point in found:
        begin = max([point.begin, *(at for at in steps if at < point.at)])
        end = min([point.end, *(at for at in steps if at > point.at)])
        low, high = max(point.low, min(begin + 1, point.at)), min(point.high, end - 1)
        divided.append(replace(point, begin=begin, low=low, high=high, end=end))
    return divided


def _within(
    y: Array, weight: Array, least: float, fewest: int, begin: int, end: int
) -> list[ChangePoint]:
    """Return the movements of the steps with indices `begin` to `end`, the last not counted."""
    part, of_part = y[begin:end], weight[begin:end]
    if len(part) < 2 * fewest:
        return []
    # A step of infinite or of 1e200 has no sum of squares: then nothing is gained.
    with np.errstate(all="ignore"):
        jumps = np.nan_to_num(jump_gains(part, of_part, fewest))
        bends = np.nan_to_num(_bend_gains(part, of_part, fewest))
        at = int(np.argmax(jumps))
        # A bend must fit better than two jumps, not than the larger of them alone.
        sides = (slice(None, at), slice(at, None))
        second = max(jump_gains(part[one], of_part[one], fewest).max(initial=0.0) for one in sides)
    creeps = bends.max() > jumps[at] + second
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
    before, after = found.levels(y)
    if found.gain < LEAST_GAIN or abs(after - before) < least:
        return []
    if creeps:
        return [found]
    return [
        *_within(y, weight, least, fewest, begin, found.at),
        found,
        *_within(y, weight, least, fewest, found.at, end),
    ]


def jump_gains(y: Array, weight: Array, fewest: int) -> Array:
    """Return by how much a jump at each index lowers the weighted sum of squares of a constant."""
    gain = np.zeros(len(y))
    if len(y) < 2 * fewest:
        return gain
    before, after = np.cumsum(weight)[:-1], np.cumsum(weight[::-1])[::-1][1:]
    left = np.cumsum(weight * (y - np.average(y, weights=weight)))[:-1]
    gain[1:] = left**2 * (1.0 / before + 1.0 / after)
    gain[:fewest] = gain[len(y) - fewest + 1 :] = 0.0
    return gain


def _bend_gains(y: Array, weight: Array, fewest: int) -> Array:
    """Return by how much a bend at each index lowers the weighted sum of squares of a constant.

    From the bend on the series grows as a power of the steps since, on its own scale: a mismatch
    of weights that drift apart grows fast at first where its logarithm is taken.
    """
    gain = np.zeros(len(y))
    centred = weight * (y - np.average(y, weights=weight))
    place = np.arange(len(y), dtype=np.float64)
    for at in range(0, len(y) - 2 * fewest):
        since = np.maximum(place - at, 0.0)
        for power in POWERS:
            ramp = since**power
            ramp -= np.average(ramp, weights=weight)
            gain[at] = max(gain[at], (ramp @ centred) ** 2 / (weight @ ramp**2))
    return gain
