"""Real updates: one optimizer step or many from the same start, for each preset in turn."""

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
    PresetEffect,
    PresetLoss,
    Update,
    apply_preset,
    loss_of_effect,
    loss_of_preset,
    naive_effect,
)

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelReplay:
    """What all updates of a model on one batch share."""

    learner: Learner
    plan: Plan
    update: Update
    training: Training
    parts: Parts  # the rows of the batch as the model reads them
    batch: ReplayBatch

    @property
    def names(self) -> tuple[str, ...]:
        """The presets, and the update without any correction."""
        return (*self.plan.corrections, NAIVE)

    def loss(self, name: str) -> PresetLoss:
        """The loss of a preset on the whole batch."""
        return loss_of_preset(self.plan, name, self.batch, self.update)


@dataclass(frozen=True, slots=True)
class StepsTaken:
    """All optimizer steps of one preset together."""

    step_norm: float  # root of the summed squares of their norms
    steps: int


def minibatches(rows: int, count: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each mini-batch, shuffled anew every epoch; one of all rows needs no shuffle."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = np.arange(rows) if count == 1 else random.permutation(rows)
        yield from (np.sort(part) for part in np.array_split(order, count) if len(part))


def rows_only(parts: Parts, rows: NDArray[np.int64]) -> list[Trajectories]:
    """The parts with the tokens of all other rows masked; `rows` count those with tokens."""
    masked, first = [], 0
    for part in parts:
        filled = part.sampled_lengths > 0
        numbers = np.cumsum(filled) - 1 + first
        chosen = filled & np.isin(numbers, rows)
        first += int(filled.sum())
        mask = part.mask & np.repeat(chosen, part.response_ids.lengths)
        masked.append(replace(part, mask=mask))
    return masked


def train(replay: ModelReplay, name: str, first: Any = None) -> StepsTaken:
    """Take every optimizer step of one preset; `first` is the gradient of the first if it is known.

    In decoupled mode weights and mask are made once, from the whole batch, as trainers do; in
    bypass mode anew from the current policy of every mini-batch.
    """
    if replay.update.rebaseline:  # of the whole batch, before the first mini-batch
        replay = _with_batch(replay, replay.loss(name).batch)
    batch, training = replay.batch, replay.training
    whole = _whole_effect(replay, name)
    rows_of_steps = list(
        minibatches(len(batch.lengths), training.minibatches, training.epochs, training.seed)
    )
    squares = 0.0
    for index, rows in enumerate(rows_of_steps):
        gradient = first if index == 0 and len(rows) == len(batch.lengths) else None
        if gradient is None:
            gradient = _gradient(replay, name, whole, rows, later=index > 0)
        if gradient is not None:
            squares += replay.learner.apply(gradient, training.optimizer).step_norm ** 2
    return StepsTaken(float(np.sqrt(squares)), len(rows_of_steps))


def _with_batch(replay: ModelReplay, batch: ReplayBatch) -> ModelReplay:
    return replace(replay, batch=batch)


def _whole_effect(replay: ModelReplay, name: str) -> PresetEffect | None:
    """What decoupled mode fixes before the first mini-batch; None in bypass mode."""
    if name == NAIVE:
        return naive_effect(replay.batch, replay.update.loss)
    if replay.plan.corrections[name].mode == "bypass":
        return None
    return apply_preset(replay.plan, name, replay.batch, replay.update.loss)


def _gradient(
    replay: ModelReplay,
    name: str,
    whole: PresetEffect | None,
    rows: NDArray[np.int64],
    *,
    later: bool,
) -> Any:
    """Gradient of one mini-batch at the current weights; None where its loss is not defined.

    `later` mini-batches have other current log-probs than the batch was read with.
    """
    plan, update, batch = replay.plan, replay.update, replay.batch
    own, part = rows_only(replay.parts, rows), batch.take(rows)
    if later:
        part = part.with_log_probs(current=replay.learner.log_probs(own).log_probs)
    if whole is None:
        effect = apply_preset(plan, name, part, update.loss)
    else:
        tokens = np.repeat(np.isin(np.arange(len(batch.lengths)), rows), batch.lengths)
        effect = whole.take(tokens)
    loss = loss_of_effect(effect, part, update, plan.trainer.update)
    if loss.result.undefined or not np.isfinite(loss.coefficients).all():
        return None
    return replay.learner.gradients(own, loss.coefficients[None]).whole[0]
