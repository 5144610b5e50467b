"""Real updates: one step or many from the same start, for each preset in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.learning.learner import Learner, Parts, Training
from rcdiag.table.trajectories import Trajectories
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.batch import ReplayBatch
from rcdiag.usecases.replay.preset import (
    NAIVE,
    Applied,
    Evaluated,
    Update,
    applied,
    evaluated,
    evaluated_as,
    naive,
)

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Taken:
    """All optimizer steps of one preset together."""

    step_norm: float
    steps: int


def minibatches(rows: int, count: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each mini-batch, shuffled anew every epoch; one of all rows needs no shuffle."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = np.arange(rows) if count == 1 else random.permutation(rows)
        yield from (np.sort(part) for part in np.array_split(order, count) if len(part))


def rows_only(parts: Parts, rows: NDArray[np.int64]) -> list[Trajectories]:
    """The same parts with the tokens of all other rows masked; rows count those with tokens."""
    found, first = [], 0
    for part in parts:
        filled = part.sampled_lengths > 0
        numbers = np.cumsum(filled) - 1 + first
        chosen = filled & np.isin(numbers, rows)
        first += int(filled.sum())
        mask = part.mask & np.repeat(chosen, part.response_ids.lengths)
        found.append(replace(part, mask=mask))
    return found


def train(
    learner: Learner,
    plan: Plan,
    name: str,
    parts: Parts,
    batch: ReplayBatch,
    update: Update,
    training: Training,
    first: Any = None,
) -> Taken:
    """Every optimizer step of one preset on a batch; `first` is the first one's gradient if known.

    In decoupled mode weights and mask are made once, from the whole batch, as trainers do; in
    bypass mode anew from the current policy of every mini-batch.
    """
    if update.rebaseline:  # of the whole batch, before the first mini-batch
        batch = evaluated(plan, name, batch, update).batch
    whole = _whole(plan, name, batch, update)
    chunks = list(
        minibatches(len(batch.lengths), training.minibatches, training.epochs, training.seed)
    )
    squares = 0.0
    for index, rows in enumerate(chunks):
        gradient = first if index == 0 and len(rows) == len(batch.lengths) else None
        if gradient is None:
            gradient = _gradient(learner, plan, name, parts, batch, update, whole, rows, index)
        if gradient is None:
            continue
        report = learner.apply(gradient, training.optimizer)
        squares += report.step_norm**2
    return Taken(float(np.sqrt(squares)), len(chunks))


def _whole(plan: Plan, name: str, batch: ReplayBatch, update: Update) -> Applied | None:
    """What decoupled mode fixes before the first mini-batch."""
    if name == NAIVE:
        return naive(batch, update.loss)
    if plan.corrections[name].mode == "bypass":
        return None
    return applied(plan, name, batch, update.loss)


def _gradient(
    learner: Learner,
    plan: Plan,
    name: str,
    parts: Parts,
    batch: ReplayBatch,
    update: Update,
    whole: Applied | None,
    rows: NDArray[np.int64],
    index: int,
) -> Any:
    """Of one mini-batch at the current weights; None where its loss is not defined."""
    tokens = np.repeat(np.isin(np.arange(len(batch.lengths)), rows), batch.lengths)
    own = rows_only(parts, rows)
    part = batch.take(rows)
    if index:
        part = part.with_log_probs(current=learner.log_probs(own).log_probs)
    fixed = applied(plan, name, part, update.loss) if whole is None else _part(whole, tokens)
    done: Evaluated = evaluated_as(fixed, part, update, plan.trainer.name)
    if done.result.undefined or not np.isfinite(done.coefficients).all():
        return None
    return learner.gradients(own, done.coefficients[None]).whole[0]


def _part(whole: Applied, tokens: Flags) -> Applied:
    return replace(
        whole,
        anchor=whole.anchor[tokens],
        kept=whole.kept[tokens],
        weights=None if whole.weights is None else whole.weights[tokens],
    )
