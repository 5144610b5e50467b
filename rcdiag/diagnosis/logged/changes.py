"""At which step a logged number moved."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.change_points import FEWEST, change_points, noise_of
from rcdiag.diagnosis.logged.run import Array, Counts, Series

# Least movement that counts, by scale: a factor of 1.5 (of E[ratio^2] 1.05), or .02 in the number's
# own unit.
FACTOR = float(np.log(1.5))
LEAST_MOVED = {"log": FACTOR, "correlation": FACTOR, "squared ratio": 0.05, "linear": 0.02}
# A spike is one step or two that are this many times the noise above the steps on both sides.
SPIKE = 8.0
FEWEST_SPIKES = 3  # that come at equal distances
PRESENT = 2 / 3  # share of the steps at equal distances that are spikes


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
    """Return the movements of a series without its spikes, in the order of their steps."""
    level = np.isfinite(series.values) & ~np.isin(series.steps, spikes_of(series))
    values = series.values[level]
    return _changes(series, series.steps[level], values, series.quantity.scaled(values))


def parting_of(one: Series, other: Series) -> Change | None:
    """Return where a series leaves that of another run, at the steps that both log; None: nowhere.

    `before` and `after` of the change are the difference on the quantity's own scale.
    """
    _, here, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    known = np.isfinite(one.values[here]) & np.isfinite(other.values[there])
    here, there = here[known], there[known]
    scaled = one.quantity.scaled
    apart = scaled(one.values[here]) - scaled(other.values[there])
    return next(iter(_changes(one, one.steps[here], apart, apart)), None)


def _changes(series: Series, steps: Counts, values: Array, scaled: Array) -> list[Change]:
    """Return the movements of values [steps], found on the scale on which they move."""
    if len(steps) < FEWEST:
        return []
    error = np.full(len(steps), noise_of(scaled))
    found = []
    for point in change_points(scaled, error, LEAST_MOVED[series.quantity.scale]):
        before, after = point.levels(values)
        found.append(
            Change(
                quantity=series.quantity.name,
                key=series.key,
                step=int(steps[point.at]),
                low=int(steps[point.low]),
                high=int(steps[point.high]),
                before=before,
                after=after,
                shape=point.shape,
                gain=point.gain,
            )
        )
    return found


def spikes_of(series: Series) -> Counts:
    """Return the steps that stand alone far above the steps around them."""
    finite = np.isfinite(series.values)
    y = series.quantity.scaled(series.values[finite])
    if len(y) < FEWEST:
        return np.zeros(0, np.int64)
    noise = max(noise_of(y), LEAST_MOVED[series.quantity.scale] / SPIKE)
    before, after = np.pad(y, (2, 0), mode="edge"), np.pad(y, (0, 2), mode="edge")
    lower = (np.minimum(before[:-2], before[1:-1]), np.minimum(after[1:-1], after[2:]))
    spikes: Counts = series.steps[finite][y - np.maximum(*lower) > SPIKE * noise]
    return spikes


def period_of(steps: Counts) -> int | None:
    """Return the distance at which steps come again and again; None where they do not.

    One of three may be missing: an evaluation of few rows, or a step that is not logged.
    """
    if len(steps) < FEWEST_SPIKES:
        return None
    distances = np.diff(steps)
    period = int(distances.min())
    expected = 1 + (steps[-1] - steps[0]) // period
    if period == 1 or (distances % period).any() or len(steps) < PRESENT * expected:
        return None
    return period
