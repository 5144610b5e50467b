"""The trainer's log becomes a part of the result: theirs, ours, and why they differ."""

from __future__ import annotations

from rcdiag.errors import RcdiagError, setting
from rcdiag.logs import Log
from rcdiag.results import LogComparison, LoggedKey, ScoreResult
from rcdiag.table.survey import known_steps
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.logged.keys import Names
from rcdiag.usecases.logged.likeliest import explained
from rcdiag.usecases.logged.reasons import Differing, Place, Reason, Sought
from rcdiag.usecases.logged.side_by_side import Sides, agree, batches_of, side_by_side


def compared(log: Log, result: ScoreResult, dump: Table, plan: Plan) -> LogComparison:
    """Set a log beside the numbers of a result, and compute why they differ where they do."""
    computed = {key for one in result.corrections.values() for key in one.metrics}
    names = Names.of(plan.trainer, computed)
    steps = known_steps(dump)
    batches = batches_of(result, steps[0] if len(steps) == 1 else None)
    sides = side_by_side(log, batches, names, given="step" in dump.given)
    numbers = _both(log, names, sides)
    if not numbers:
        raise _nothing_in_common(log, names, sides)
    differing = [one for one in numbers if not agree(log, one.place.log_key, one.theirs, one.ours)]
    reasons: dict[Place, Reason] = {}
    if differing:
        pair = (result.behavior, result.target)
        reasons = explained(log, differing, Sought(dump, pair, plan, names, sides))
    keys = [_key(one, one not in differing, reasons.get(one.place), names) for one in numbers]
    ours = {key for pair in sides.pairs for key in pair.batch.numbers(names, sides.preset)}
    logged = {place.key for one in numbers for place in [one.place]}
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
    )


def _nothing_in_common(log: Log, names: Names, sides: Sides) -> RcdiagError:
    """Return the error for a log whose keys of the trainer are none of the chosen preset's."""
    theirs = [key for key in log.keys if names.ours(key) is not None]
    preset = f"preset {sides.preset}" if sides.preset else "the mismatch"
    return RcdiagError(
        f"{log.path}: {preset} has none of its keys at the steps of the table",
        hint=f"the log has {', '.join(theirs[:4])}: give the preset that logs them, or "
        f"{setting('trainer_config')}",
    )


def _both(log: Log, names: Names, sides: Sides) -> list[Differing]:
    """Return every number that both have."""
    numbers = []
    for pair in sides.pairs:
        ours = pair.batch.numbers(names, sides.preset)
        for key, theirs in log.rows[pair.log_step].items():
            own = names.ours(key)
            if own is not None and own in ours:
                place = Place(key, own, pair.log_step, pair.batch.step)
                numbers.append(Differing(place, theirs, ours[own]))
    return numbers


def _key(one: Differing, agrees: bool, reason: Reason | None, names: Names) -> LoggedKey:
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
