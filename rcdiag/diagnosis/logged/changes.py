"""At which step a logged number moved: change points with an interval, by least squares.

Four shapes are compared for a stretch of steps: constant; a jump at a step; a bend, from which on
the number grows or falls steadily; and a drift over the whole stretch. The noise is that of the
differences of neighbouring steps, by their median, which neither a jump nor a drift enlarges. After
a jump both sides are looked at again.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.logged.run import Array, Counts, Series

# A shape must lower the sum of squares by this many times the noise's variance. A jump is tried at
# each of n steps: the largest of n chi-squared values with one degree of freedom stays below this
# in all but one of some thousand series of 200 steps without a change.
LEAST_GAIN = 24.0
# Chi-squared with one degree of freedom, 95%: steps with less are in the interval of a change.
INTERVAL = 3.84
# Least movement that counts, by scale: a factor of 1.5 (of E[ratio^2] 1.05), or .02 in the number's
# own unit.
FACTOR = float(np.log(1.5))
LEAST_MOVED = {"log": FACTOR, "correlation": FACTOR, "squared ratio": 0.05, "linear": 0.02}
POWERS = (0.5, 1.0)  # of the steps since a bend
FEWEST = 6  # steps of a series in which a change is looked for
FEWEST_OF_SIDE = 2  # steps on each side of a change
# A spike is one step or two this many times the noise away from its neighbours on both sides.
SPIKE = 8.0
FEWEST_SPIKES = 3  # that come at equal distances
MAD = 0.6745  # median of |x| of a standard normal x


class Change(Struct, frozen=True, kw_only=True):
    """A movement of one series."""

    quantity: str
    key: str
    step: int  # from which on
    low: int  # 95% interval of the step
    high: int
    before: float  # median before
    after: float  # median from the step on; of a bend, of the last quarter
    shape: str  # `jump` or `creep`
    gain: float  # in variances of the noise


def changes_of(series: Series) -> list[Change]:
    """Return the movements of a series, in the order of their steps."""
    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    if len(steps) < FEWEST:
        return []
    scaled = series.quantity.scaled(values)
    noise = _noise(scaled)
    found = _within(series, steps, values, scaled, noise, 0, len(steps))
    return sorted(found, key=lambda one: one.step)


def parting_of(one: Series, other: Series) -> Change | None:
    """Return where a series leaves that of another run, at the steps that both log; None: nowhere.

    `before` and `after` of the change are the difference on the quantity's own scale.
    """
    _, here, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    known = np.isfinite(one.values[here]) & np.isfinite(other.values[there])
    here, there = here[known], there[known]
    if len(here) < FEWEST:
        return None
    scaled = one.quantity.scaled
    apart = scaled(one.values[here]) - scaled(other.values[there])
    found = _within(one, one.steps[here], apart, apart, _noise(apart), 0, len(apart))
    return min(found, key=lambda change: change.step, default=None)


def _noise(y: Array) -> float:
    """Return the standard deviation of a series without its movements."""
    away = np.abs(np.diff(y))
    size = float(np.median(away)) / (MAD * np.sqrt(2.0))
    return float(max(size, 1e-3 * float(np.ptp(y)), 1e-12))


def _within(
    series: Series, steps: Counts, values: Array, y: Array, noise: float, first: int, last: int
) -> list[Change]:
    """Return the movements of the steps with indices `first` to `last`, the last not counted."""
    part = y[first:last]
    if len(part) < 2 * FEWEST_OF_SIDE:
        return []
    jumps, bends = _jumps(part), _bends(part)
    at = int(np.argmax(np.maximum(jumps, bends)))
    gain = float(max(jumps[at], bends[at])) / noise**2
    creeps = bends.max() > jumps.max()
    after = part[-max(len(part) // 4, 1) :] if creeps else part[at:]
    before = part[: max(at, 1)]
    moved = abs(float(np.median(after) - np.median(before)))
    if gain < LEAST_GAIN or moved < LEAST_MOVED[series.quantity.scale]:
        return []
    gains = bends if creeps else jumps
    near = np.flatnonzero(gains >= gains.max() - INTERVAL * noise**2)
    raw = values[first:last]
    change = Change(
        quantity=series.quantity.name,
        key=series.key,
        step=int(steps[first + at]),
        low=int(steps[first + near[0]]),
        high=int(steps[first + near[-1]]),
        before=float(np.median(raw[: max(at, 1)])),
        after=float(np.median(raw[-len(after) :])),
        shape="creep" if creeps else "jump",
        gain=gain,
    )
    if creeps:
        return [change]
    cut = first + at
    return [
        *_within(series, steps, values, y, noise, first, cut),
        change,
        *_within(series, steps, values, y, noise, cut, last),
    ]


def _jumps(y: Array) -> Array:
    """Return by how much a jump at each index lowers the sum of squares of a constant."""
    n, total = len(y), y.sum()
    count = np.arange(n)
    left = np.concatenate([[0.0], np.cumsum(y)[:-1]])
    gain = np.zeros(n)
    inside = (count >= FEWEST_OF_SIDE) & (count <= n - FEWEST_OF_SIDE)
    k = count[inside]
    gain[inside] = (left[inside] - k * total / n) ** 2 / (k * (1.0 - k / n))
    return gain


def _bends(y: Array) -> Array:
    """Return by how much a bend at each index lowers the sum of squares of a constant.

    From the bend on the series grows as a power of the steps since, on its own scale: a mismatch
    of weights that drift apart grows fast at first where its logarithm is taken.
    """
    n = len(y)
    centred, gain = y - y.mean(), np.zeros(n)
    place = np.arange(n, dtype=np.float64)
    for at in range(0, n - 2 * FEWEST_OF_SIDE):
        since = np.maximum(place - at, 0.0)
        for power in POWERS:
            ramp = since**power
            ramp -= ramp.mean()
            gain[at] = max(gain[at], (ramp @ centred) ** 2 / (ramp @ ramp))
    return gain


def spikes_of(series: Series) -> Counts:
    """Return the steps that stand alone far above the steps around them."""
    finite = np.isfinite(series.values)
    y = series.quantity.scaled(series.values[finite])
    if len(y) < FEWEST:
        return np.zeros(0, np.int64)
    noise = max(_noise(y), LEAST_MOVED[series.quantity.scale] / SPIKE)
    padded = np.pad(y, 2, mode="edge")
    around = np.median(np.stack([padded[:-4], padded[1:-3], padded[3:-1], padded[4:]]), axis=0)
    spikes: Counts = series.steps[finite][y - around > SPIKE * noise]
    return spikes


def period_of(steps: Counts) -> int | None:
    """Return the distance at which steps come again and again; None where they do not."""
    if len(steps) < FEWEST_SPIKES:
        return None
    distances = np.diff(steps)
    return int(distances[0]) if (distances == distances[0]).all() and distances[0] > 1 else None
