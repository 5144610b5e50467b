"""Change points of logged numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.change_points import FEWEST, change_points
from rcdiag.diagnosis.logged.run import Series
from rcdiag.diagnosis.thresholds import LARGER

# Smallest change that counts, by scale: a factor of 1.5 (for E[ratio^2] 1.05), or .02 in the
# number's own unit.
FACTOR = float(np.log(LARGER))
LEAST_MOVED = {
    "log": FACTOR,
    "correlation": FACTOR,
    "signed log": FACTOR,
    "squared ratio": 0.05,
    "linear": 0.02,
}
# A change is clear if its gain is at least this share of that of the clearest change.
AS_CLEAR = 0.25
# Periodic steps: their least number, and the share of a period's steps that must be present.
FEWEST_PERIODS, PRESENT = 3, 2 / 3


class Change(Struct, frozen=True, kw_only=True):
    """A change of one series."""

    quantity: str
    key: str
    step: int  # the first changed step
    low: int  # 95% interval of the step
    high: int
    before: float  # median before
    after: float  # median from the step on; after a bend, of the last quarter
    shape: str  # `jump` or `creep`
    gain: float  # in variances of the noise


def changes_of(series: Series, without: Sequence[int] | Counts = ()) -> list[Change]:
    """Return the changes of a series in the order of steps; steps in `without` are left out."""
    used = np.isfinite(series.values) & ~np.isin(series.steps, without)
    values = series.values[used]
    return _changes(series, series.steps[used], values, series.quantity.scaled(values))


def parting_of(one: Series, other: Series) -> Change | None:
    """Return the first clear change of the difference between a quantity in two runs, or None.

    The steps are those that both runs log. `before` and `after` are differences on the quantity's
    own scale.
    """
    steps, here, there = common(one, other)
    scaled = one.quantity.scaled
    apart = scaled(here) - scaled(there)
    changes = _changes(one, steps, apart, apart)
    return first_clear(changes) if changes else None


def levels_apart(one: Series, other: Series) -> tuple[float, float] | None:
    """Return the medians of a quantity in two runs over common steps, if it differs enough."""
    steps, here, there = common(one, other)
    if not len(steps):
        return None
    levels = float(np.median(here)), float(np.median(there))
    first, second = one.quantity.scaled(np.array(levels))
    return levels if abs(first - second) >= LEAST_MOVED[one.quantity.scale] else None


def common(one: Series, other: Series) -> tuple[Counts, Array, Array]:
    """Return the steps at which both series have a finite number, and these numbers."""
    steps, here, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    first, second = one.values[here], other.values[there]
    known = np.isfinite(first) & np.isfinite(second)
    return steps[known], first[known], second[known]


def first_clear(changes: Sequence[Change]) -> Change:
    """Return the first clear change; the clearest one may only be the end of the same change."""
    clearest = max(change.gain for change in changes)
    clear = (change for change in changes if change.gain >= AS_CLEAR * clearest)
    return min(clear, key=lambda change: change.step)


def _changes(series: Series, steps: Counts, values: Array, scaled: Array) -> list[Change]:
    """Return the changes of values [steps], searched on the quantity's own scale."""
    if len(steps) < FEWEST:
        return []
    found = []
    for point in change_points(scaled, None, LEAST_MOVED[series.quantity.scale]):
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


def periodic_steps(series: Series) -> Counts:
    """Return periodic steps whose values are larger than those of all other steps; often none.

    Values that are not finite count as the largest.
    """
    y = series.quantity.scaled(series.values)
    y = np.where(np.isfinite(y), y, np.inf)
    order = np.argsort(-y, kind="stable")
    least = LEAST_MOVED[series.quantity.scale]
    for count in range(len(y) // FEWEST_PERIODS, FEWEST_PERIODS - 1, -1):
        if not y[order[count - 1]] >= y[order[count]] + least or np.isinf(y[order[count]]):
            continue
        steps: Counts = np.sort(series.steps[order[:count]])
        period = period_of(steps, int(series.steps[-1]))
        # Three equally spaced steps are chance, unless they begin within the first period.
        if period and (count > FEWEST_PERIODS or steps[0] - series.steps[0] < period):
            return steps
    return np.zeros(0, np.int64)


def period_of(steps: Counts, last: int) -> int | None:
    """Return the period of some steps up to the `last` step of a run; None if they have none.

    A third of the steps may be missing: an evaluation of few rows, or a step that is not logged.
    """
    if len(steps) < FEWEST_PERIODS:
        return None
    distances = np.diff(steps)
    period = int(distances.min())
    expected = 1 + (last - int(steps[0])) // period
    if period < FEWEST_PERIODS or (distances % period).any() or len(steps) < PRESENT * expected:
        return None
    return period
