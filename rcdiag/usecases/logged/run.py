"""Compares a trainer's log with a result, and finds the likeliest reason of each difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import after_colon
from rcdiag.logs import Log
from rcdiag.results import LogComparison, LoggedKey, ScoreResult
from rcdiag.results.diagnosis import Diagnosis
from rcdiag.statistics.accumulator import Step
from rcdiag.table.survey import known_steps
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.log_alone import fault_of, log_alone
from rcdiag.usecases.logged.keys import KeyNames
from rcdiag.usecases.logged.likely_plans import tried_plans
from rcdiag.usecases.logged.reasons import (
    REASONS,
    Differing,
    LoggedEvidence,
    Place,
    Reason,
    Sought,
    arithmetic,
)
from rcdiag.usecases.logged.side_by_side import NEAR, agree, batches_of, side_by_side

# (Step of the table, key of the trainer) -> how much rounding may change the number.
Slack = Mapping[tuple[Step, str], float]
# Possible error of a sum of thousands of float32 numbers near 1: four roundings of such a number.
UNIT = 2.0**-22


def compared(log: Log, result: ScoreResult, dump: Table, plan: Plan) -> LogComparison:
    """Compare a log with the numbers of a result, and compute the reasons of differences."""
    computed = {key for one in result.corrections.values() for key in one.metrics}
    names = KeyNames.of(plan.trainer, computed)
    steps = known_steps(dump)
    batches = batches_of(result, steps[0] if len(steps) == 1 else None)
    sides = side_by_side(log, batches, names, given="step" in dump.given)
    numbers = [
        Differing(Place(key, own, pair.log_step, pair.batch.step), theirs, ours)
        for pair in sides.pairs
        for key, own, theirs, ours in pair.numbers(log, names, sides.preset)
    ]
    if not numbers:
        theirs = [key for key in log.keys if names.ours(key) is not None]
        preset = f"preset {sides.preset}" if sides.preset else "the mismatch"
        raise RcdiagError(
            f"{log.path}: has no key of {preset} at the steps of the table",
            hint=f"the log has {', '.join(theirs[:4])}: give the preset that logs them, or "
            f"{setting('trainer_config')}",
        )
    differing = [one for one in numbers if not agree(log, one.place.log_key, one.theirs, one.ours)]
    reasons: dict[Place, Reason] = {}
    if differing:
        pair = (result.behavior, result.target)
        reasons = explained(log, differing, Sought(dump, pair, plan, names, sides))
    keys = [_key(one, one not in differing, reasons.get(one.place), names) for one in numbers]
    ours = {key for pair in sides.pairs for key in pair.batch.numbers(names, sides.preset)}
    logged = {one.place.key for one in numbers}
    return LogComparison(
        file=str(log.path),
        log_format=log.format,
        log_steps=[pair.log_step for pair in sides.pairs],
        step_reason=sides.step_reason,
        preset=sides.preset,
        preset_reason=sides.preset_reason,
        keys=sorted(keys, key=lambda key: (key.agrees, key.explained_by is not None)),
        not_ours={key: count for key, count in log.keys.items() if names.ours(key) not in ours},
        not_logged=sorted(ours - logged),
        log_shows=log_alone(log, plan.trainer.family),
    )


def beside_log(diagnosis: Diagnosis, comparison: LogComparison, log: Log, plan: Plan) -> Diagnosis:
    """Leave the verdict on a healthy table open where its log shows a fault at the same steps.

    The fault may be in rows that are not in the table, or the two are of different runs. A log
    whose numbers are all those of the table shows nothing that the table does not.
    """
    if diagnosis.verdict != "healthy" or not comparison.unexplained:
        return diagnosis
    rows = {step: row for step, row in log.rows.items() if step in comparison.log_steps}
    fault = fault_of(replace(log, rows=rows), plan.trainer.family)
    if fault is None:
        return diagnosis
    steps = [str(step) for step in rows if step is not None]
    same = f"at the same step{'s' * (len(steps) > 1)}"
    where = f"{same} ({', '.join(steps)})" if steps else "of the same step"
    return replace(
        diagnosis,
        verdict="inconclusive",
        summary=f"The rows of the table show no more than rounding, but the log {log.path.name} "
        f"{where} shows a fault: {after_colon(fault.message)} The table lacks the rows at fault, "
        "or is not of this run.",
    )


def not_compared(log: Log, dump: Table, plan: Plan) -> LogComparison:
    """Judge a log by itself, beside a table of one policy, which has no numbers to compare."""
    return LogComparison(
        file=str(log.path),
        log_format=log.format,
        log_steps=list(known_steps(dump)),
        step_reason=None,
        preset=None,
        preset_reason="the table has one policy",
        keys=[],
        not_ours=dict(log.keys),
        not_logged=[],
        log_shows=log_alone(log, plan.trainer.family),
    )


def _key(one: Differing, agrees: bool, reason: Reason | None, names: KeyNames) -> LoggedKey:
    says = None
    if not agrees:
        note = names.note(one.place.key)
        says = (
            reason.says(one.place.key) if reason else f"not explained{f'; {note}' if note else ''}"
        )
    return LoggedKey(
        key=one.place.log_key,
        log_step=one.place.log_step,
        theirs=one.theirs.value,
        ours=one.ours,
        difference=one.theirs.value - one.ours,
        agrees=agrees,
        explained_by=None if agrees or reason is None else reason.name,
        reason=says,
    )


def explained(log: Log, differing: Sequence[Differing], sought: Sought) -> dict[Place, Reason]:
    """Return the reason of every differing number for which one is found.

    Numbers that differ only by rounding are explained first. If another reason, found for the other
    numbers, fits one of these far better than rounding, it replaces rounding.
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
    evidence: LoggedEvidence,
    slack: Slack,
) -> dict[Place, Reason]:
    """Return the reason of every number for which one is found.

    Of several reasons that give a number, the one that gives the most numbers is taken, then the
    first: one reason for a whole log is likelier than many that each fit one number. Numbers in
    `rounded` get a reason only if it is far nearer than rounding.
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
    """Return how much rounding may change a number: twice our change in float32, plus UNIT.

    For a standard deviation, sqrt(E[x^2] - E[x]^2), UNIT is the error of its square.
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
    """Return how far a number may be from the log's: by its digits, or 1e-6 of its size."""
    size = max(abs(one.theirs.value), abs(number))
    return max(NEAR * size, log.rounding(one.place.log_key, one.theirs))


def _is_rounding(log: Log, one: Differing, rounding: Reason, slack: Slack) -> bool:
    """Tell whether a number differs from ours only by float32 rounding."""
    place, theirs = (one.place.step, one.place.key), one.theirs.value
    if _gives(log, one, rounding, {}):
        return True
    return place in slack and bool(
        abs(theirs - one.ours) <= slack[place] + _exact(log, one, theirs)
    )


def _gives(log: Log, one: Differing, reason: Reason, slack: Slack) -> bool:
    """Tell whether a reason gives the trainer's number, up to printed digits and rounding."""
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
    # The trainer's float32 adds rounding; still the reason must explain nearly all of the
    # difference.
    near = exact + slack.get(place, 0.0)
    return bool(apart <= min(near, 0.1 * abs(theirs - one.ours)))


def _is_far_nearer(log: Log, one: Differing, reason: Reason) -> bool:
    """Tell whether a reason gives a number and explains nearly all of the difference."""
    number = reason.numbers.get((one.place.step, one.place.key), np.nan)
    apart = abs(one.theirs.value - number)
    return _gives(log, one, reason, {}) and bool(apart <= 0.1 * abs(one.theirs.value - one.ours))
