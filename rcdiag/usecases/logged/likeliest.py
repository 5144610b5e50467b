"""The reason of every number that differs is the likeliest of those that give the log's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rcdiag.logs import Log
from rcdiag.statistics.accumulator import Step
from rcdiag.usecases.logged.likely_plans import tried_plans
from rcdiag.usecases.logged.reasons import (
    REASONS,
    Differing,
    Evidence,
    Place,
    Reason,
    Sought,
    arithmetic,
)
from rcdiag.usecases.logged.side_by_side import NEAR

# Step of the table and key of the trainer -> by how much rounding may move the number.
Slack = Mapping[tuple[Step, str], float]
# What sums of thousands of float32 numbers around 1 may be off by: four roundings of such a number.
UNIT = 2.0**-22


def explained(log: Log, differing: Sequence[Differing], sought: Sought) -> dict[Place, Reason]:
    """Return the reason of every number that has one.

    Numbers that differ by rounding alone come first. Where others have another reason that gives
    one of these as well, far nearer than rounding would, it counts for both.
    """
    rounding = arithmetic(differing, sought)
    slack = _slack(differing, rounding)
    reasons = {one.place: rounding for one in differing if _is_rounding(log, one, rounding, slack)}
    rest = [one for one in differing if one.place not in reasons]
    preset = sought.sides.preset
    if not rest:
        return reasons
    plans = {} if preset is None else tried_plans(sought.plan, preset)
    steps = {one.place.step for one in rest}
    beside = [one for one in differing if one.place in reasons and one.place.step in steps]
    evidence = sought.evidence([*rest, *beside], plans, preset)
    return reasons | _likeliest(log, rest, beside, evidence, slack)


def _likeliest(
    log: Log,
    differing: Sequence[Differing],
    rounded: Sequence[Differing],
    evidence: Evidence,
    slack: Slack,
) -> dict[Place, Reason]:
    """Return the reason of every number that has one; of `rounded` ones where it is far nearer.

    Of several that give a number the one that gives the most numbers counts, then the first:
    one reason for a whole log is likelier than many that happen to fit a number each.
    """
    given: list[tuple[Reason, set[Place]]] = []
    for make in REASONS:
        for reason in make(evidence):
            places = {one.place for one in differing if _gives(log, one, reason, slack)}
            if places:
                places |= {one.place for one in rounded if _is_far_nearer(log, one, reason)}
                given.append((reason, places))
        if {one.place for one in differing} <= {place for _, places in given for place in places}:
            break
    informative = {one.place for one in differing if one.theirs.value not in (0.0, 1.0)}
    given.sort(key=lambda item: -len(item[1] & informative))  # stable: the first of equals
    return {place: reason for reason, places in reversed(given) for place in places}


def _slack(differing: Sequence[Differing], rounding: Reason) -> dict[tuple[Step, str], float]:
    """Return by how much rounding may move a number: twice what float32 makes of ours, and a unit.

    Of a standard deviation, sqrt(E[x^2] - E[x]^2), it is the square that is off by the unit.
    """
    slack = {}
    for one in differing:
        place = one.place.step, one.place.key
        moved = abs(rounding.numbers.get(place, np.nan) - one.ours)
        if np.isfinite(moved):
            of_root = one.place.key.endswith("_std") and one.ours > 0.0
            slack[place] = 2.0 * moved + (UNIT / min(one.ours, 1.0) if of_root else UNIT)
    return slack


def _exact(log: Log, one: Differing, number: float) -> float:
    """Return how far a number may be from the log's: its digits, or 1e-6 of its size."""
    size = max(abs(one.theirs.value), abs(number))
    return max(NEAR * size, log.rounding(one.place.log_key, one.theirs))


def _is_rounding(log: Log, one: Differing, rounding: Reason, slack: Slack) -> bool:
    """Tell whether a number differs from ours by what float32 makes of it."""
    place, theirs = (one.place.step, one.place.key), one.theirs.value
    if _gives(log, one, rounding, {}):
        return True
    return place in slack and bool(
        abs(theirs - one.ours) <= slack[place] + _exact(log, one, theirs)
    )


def _gives(log: Log, one: Differing, reason: Reason, slack: Slack) -> bool:
    """Tell whether a reason gives the trainer's number, up to digits and rounding."""
    place = one.place.step, one.place.key
    if place not in reason.numbers:
        return False
    theirs, number = one.theirs.value, reason.numbers[place]
    if np.isnan(theirs) and np.isnan(number):
        return True
    if not (np.isfinite(theirs) and np.isfinite(number)):
        return theirs == number
    exact, apart = _exact(log, one, number), abs(theirs - number)
    if apart <= exact:
        return True
    # A trainer rounds to float32 as well; the reason has to make up for nearly all of it.
    near = exact + slack.get(place, 0.0)
    return bool(apart <= min(near, 0.1 * abs(theirs - one.ours)))


def _is_far_nearer(log: Log, one: Differing, reason: Reason) -> bool:
    """Tell whether a reason gives a number, and makes up for nearly all of the difference."""
    number = reason.numbers.get((one.place.step, one.place.key), np.nan)
    apart = abs(one.theirs.value - number)
    return _gives(log, one, reason, {}) and bool(apart <= 0.1 * abs(one.theirs.value - one.ours))
