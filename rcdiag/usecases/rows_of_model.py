"""A checkpoint is that of one training step; on a table of several it speaks of some rows only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rcdiag.diagnosis.case import Case, Counts
from rcdiag.diagnosis.experiments.rescored_sample import passage_of
from rcdiag.engines.changes import Forward
from rcdiag.errors import RcdiagError, setting
from rcdiag.usecases.checkpoints import Model

ROWS_OF_STEP = 6  # that are scored to see whether a checkpoint is that of a step
NEAR = 3.0  # times the least distance of a step: from there on a checkpoint is not that of a step
ROUNDING = 2e-3  # nats by which engines differ anyway
MOST = 0.5  # share of the steps above which a checkpoint is taken for all of them


def steps_of_model(
    model: Model, case: Case, fleet: Callable[[Callable[[int], Path]], Forward]
) -> list[int] | None:
    """Return the steps whose rows a model can speak of; None where it can speak of all.

    A name with {step} speaks of steps that have a folder. One folder on a table of several steps
    speaks of those whose trainer's column it is near to, where these are the fewer; where most
    steps are near, or none is nearer than others, it is taken for all of them.
    """
    if case.facts.step is None:
        return None
    steps = sorted({int(step) for step in case.facts.step})
    if model.by_step:
        there = [step for step in steps if model.has(step)]
        if not there:
            raise RcdiagError(
                f"{setting('model', model.name)}: no folder for any of the steps {_listed(steps)}",
                hint="name the checkpoint folder, with {step} in place of the number of the step",
            )
        return None if there == steps else there
    if len(steps) == 1:
        return None
    folder = model.of_step(None)
    distance = _distances(case, steps, fleet(lambda row: folder))
    least = float(np.nanmin(distance)) if np.isfinite(distance).any() else np.nan
    near = distance <= NEAR * least + ROUNDING
    if not near.any() or near.mean() > MOST:
        return None
    return [step for step, chosen in zip(steps, near, strict=True) if chosen]


def _distances(case: Case, steps: list[int], forward: Forward) -> np.ndarray:
    """Return the rms distance of a model's log-probs from the trainer's, nats, [steps].

    A single token counts as 1 nat at most; a step without numbers has NaN.
    """
    assert case.facts.step is not None
    policy = case.trainer or case.sampler
    distance = np.full(len(steps), np.nan)
    for number, step in enumerate(steps):
        rows = _some(case, np.flatnonzero(case.facts.step == step))
        if not len(rows):
            continue
        made = forward.log_probs([passage_of(case, int(row)) for row in rows])
        at = np.concatenate(
            [np.arange(case.start[row], case.start[row] + case.lengths[row]) for row in rows]
        )
        recorded = case.log_probs[policy][at]
        known = case.mask[at] & np.isfinite(recorded)
        if known.any():
            distance[number] = np.sqrt(np.mean(np.square(recorded - made)[known].clip(max=1.0)))
    return distance


def _some(case: Case, rows: Counts) -> Counts:
    """Return a few of a step's rows that have a prompt and a response."""
    assert case.prompt_ids is not None
    full = np.array(
        [len(case.prompt_ids.row(row)) > 0 and case.lengths[row] > 0 for row in rows], np.bool_
    )
    rows = rows[full]
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(ROWS_OF_STEP, len(rows))).astype(int))]


def _listed(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:4]))
    return shown if len(steps) <= 4 else f"{shown}, ... {steps[-1]}"
