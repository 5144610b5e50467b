"""The judgement of a training log by itself, as a part of a result."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rcdiag.diagnosis.logged.changes import Change
from rcdiag.diagnosis.logged.judge import Judged, judge
from rcdiag.diagnosis.logged.run import LoggedRun, Series, logged_run
from rcdiag.diagnosis.rules import levels_of
from rcdiag.logs import Log
from rcdiag.results.diagnosis import NamedCause
from rcdiag.results.log_summary import KeyMoved, LoggedQuantity, LogSummary, Relation
from rcdiag.usecases.run_setup import RunSetup, setup_of


def log_alone(log: Log, trainer: str) -> LogSummary | None:
    """Judge a trainer's log; None if none of its keys is known."""
    run = logged_run(log.path.name, log)
    if not run.series:
        return None
    return summarised(run, setup_of(run, trainer), judge(run, family=trainer))


def fault_of(log: Log, trainer: str) -> NamedCause | None:
    """Return the fault that a trainer's log shows, of whatever confidence; None without one."""
    run = logged_run(log.path.name, log)
    if not run.series:
        return None
    return judge(run, family=trainer).diagnosis.fault


def summarised(run: LoggedRun, setup: RunSetup, judged: Judged) -> LogSummary:
    return LogSummary(
        file=str(run.log.path.with_name(Path(run.name).name)),
        log_format=run.log.format,
        trainer_of_log=setup.family,
        generations_of_log=setup.generations,
        correction_of_log=setup.correction,
        num_steps=len(run.steps) if run.series else len(run.log.rows),
        file_notes=run.log.notes,
        log_verdict=judged.diagnosis.verdict,
        summary=judged.diagnosis.summary,
        log_from=causes[0].from_step if (causes := judged.diagnosis.causes) else None,
        quantities=[_quantity(one, setup.note(one.key)) for one in run.series.values()],
        keys_moved=[_moved(change) for change in judged.changes],
        relations=[
            Relation(
                relation=rule.name,
                number=number,
                relation_level=level,
                relation_says=rule.message(judged.shown),
            )
            for rule, level in (levels_of("log", judged.shown) if judged.shown else ())
            if (number := rule.number(judged.shown)) is not None
        ],
    )


def _quantity(series: Series, note: str) -> LoggedQuantity:
    return LoggedQuantity(
        key=series.key,
        quantity=series.quantity.name,
        means=series.quantity.says,
        quantity_unit=series.quantity.unit,
        key_note=note,
        at_steps=series.steps.tolist(),
        numbers=[float(f"{x:.6g}") if np.isfinite(x) else None for x in series.values],
    )


def _moved(change: Change) -> KeyMoved:
    return KeyMoved(
        key=change.key,
        quantity=change.quantity,
        step_moved=change.step,
        earliest=change.low,
        latest=change.high,
        key_before=float(f"{change.before:.4g}"),
        key_after=float(f"{change.after:.4g}"),
        shape=change.shape,
    )
