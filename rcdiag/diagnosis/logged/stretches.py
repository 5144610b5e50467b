"""Divides the steps of a run into stretches, each of which has one level of the mismatch."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.change_points import FEWEST
from rcdiag.diagnosis.logged.causes.correction import COSTS_LITTLE
from rcdiag.diagnosis.logged.course import OF_SIZE, Course
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.window import SIZES, StepWindow, rms_of
from rcdiag.diagnosis.thresholds import MUCH_LARGER

# Quantities whose changes divide the steps. If none of OF_SIZE, which measure the size of the
# mismatch, changes, what it costs is used, and then the surprisals, which also change with entropy
# and length.
SURPRISALS = ("trainer_log_ppl", "sampler_log_ppl")
DIVIDING = (OF_SIZE, (*COSTS_LITTLE, "rejected_count"), SURPRISALS)


def stretches(course: Course, bad: Counts) -> list[StepWindow]:
    """Divide the steps at the changes of the series with the largest total gain.

    A gradual growth has no level: of its steps only the last quarter is a stretch, because the
    mismatch is largest there. Periodic steps are another one. Steps with NaN or infinity (`bad`)
    are in none. Fewer steps than a change takes are divided where the size is another.
    """
    run = course.run
    cuts, left_out = set(_of_another_size(run)), [course.periodic, bad]
    gains = {name: 0.0 for tier in DIVIDING for name in tier}
    for change in course.changes:
        if change.quantity in gains:
            gains[change.quantity] += change.gain
    tier = next((names for names in DIVIDING if any(gains[name] for name in names)), SURPRISALS)
    for change in course.changes_in(max(tier, key=lambda name: gains[name])):
        cuts.add(change.step)
        if change.shape == "creep":
            left_out.append(np.arange(change.step, course.grown(change)))
    others = np.setdiff1d(run.steps, np.concatenate(left_out))
    parts = np.split(others, np.searchsorted(others, sorted(cuts - {int(run.steps[0])})))
    periodic = np.setdiff1d(course.periodic, bad)
    return [StepWindow(run, part) for part in (periodic, *parts) if len(part)]


def _of_another_size(run: LoggedRun) -> list[int]:
    """Return the steps of a short log with another size than all before: MUCH_LARGER, or smaller.

    Their median with those before would be the number of neither.
    """
    name = next((name for name in SIZES if name in run.series), None)
    if name is None or len(run.steps) >= FEWEST:
        return []
    series, sizes = run.series[name], rms_of(name, run.series[name].values)
    parts = ((step, sizes[:at], sizes[at:]) for at, step in enumerate(series.steps.tolist()) if at)
    return [
        step
        for step, then, now in parts
        if now.min() > MUCH_LARGER * then.max() or then.min() > MUCH_LARGER * now.max()
    ]


def began(course: Course, window: StepWindow) -> int:
    """Return the step at which the state of a stretch began: its first step, or an earlier bend."""
    bends = [
        change.step
        for change in course.changes
        if change.shape == "creep"
        and change.quantity in OF_SIZE
        and course.lasts(change, window.first)
    ]
    return min(bends, default=window.first)
