"""Divide the steps of a run into stretches, in each of which the mismatch keeps its size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.change_points import FEWEST
from rcdiag.diagnosis.logged.causes.correction import COSTS_LITTLE
from rcdiag.diagnosis.logged.changes import Change, lasts
from rcdiag.diagnosis.logged.over_steps import OF_SIZE
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.window import SIZES, StepWindow, rms_of
from rcdiag.diagnosis.thresholds import MUCH_LARGER

# Quantities whose changes divide the steps into stretches. If none of OF_SIZE, which measure the
# size of the mismatch, changes, what it costs is used, and then the surprisals, which also change
# with entropy and length.
SURPRISALS = ("trainer_log_ppl", "sampler_log_ppl")


def stretches_of(
    run: LoggedRun, changes: Sequence[Change], periodic: Counts, bad: Counts
) -> list[StepWindow]:
    """Divide the steps at the changes of the series with the largest total gain.

    A gradual growth has no level: of its steps only the last quarter is a stretch, because the
    mismatch is largest there. The `periodic` steps are another one. Steps with NaN or infinity
    (`bad`) are in none. Fewer steps than a change takes are divided where the size is another.
    """
    first = int(run.steps[0])
    cuts, left_out = set(_of_another_size(run)), [periodic, bad]
    tiers = (OF_SIZE, (*COSTS_LITTLE, "rejected_count"), SURPRISALS)
    gains = {name: 0.0 for tier in tiers for name in tier}
    for change in changes:
        if change.quantity in gains:
            gains[change.quantity] += change.gain
    dividing = next((names for names in tiers if any(gains[name] for name in names)), SURPRISALS)
    clearest = max(dividing, key=lambda name: gains[name])
    for change in changes:
        if change.quantity == clearest:
            cuts.add(change.step)
            if change.shape == "creep":
                grown = last_quarter(run, change, changes)
                left_out.append(np.arange(change.step, grown))
    others = np.setdiff1d(run.steps, np.concatenate(left_out))
    parts = np.split(others, np.searchsorted(others, sorted(cuts - {first})))
    return [StepWindow(run, part) for part in (np.setdiff1d(periodic, bad), *parts) if len(part)]


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


def steps_since(run: LoggedRun, change: Change, changes: Sequence[Change]) -> StepWindow:
    """Return the steps from a change to the next one of its quantity."""
    steps = [step for step in run.steps.tolist() if lasts(change, changes, step)]
    return StepWindow(run, np.array(steps, np.int64))


def last_quarter(run: LoggedRun, change: Change, changes: Sequence[Change]) -> int:
    """Return the first step of the last quarter of a growth."""
    during = [step for step in run.steps.tolist() if lasts(change, changes, step)]
    return int(during[-max(len(during) // 4, 1)])
