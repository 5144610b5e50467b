"""Real updates: one optimizer step or many from the same start, for each preset in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.learning.learner import Learner
from rcdiag.usecases.replay.preset import (
    PresetEffect,
    PresetLoss,
    apply_preset,
    loss_of_effect,
    loss_of_preset,
)
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update import NAIVE, Update
from rcdiag.usecases.replay.update_batch import ReplayBatch


class ModelReplay(Struct, frozen=True, kw_only=True, eq=False):
    """What all updates of a model on one batch share."""

    learner: Learner
    update: Update
    training: Training
    batch: ReplayBatch

    def scored(self) -> ModelReplay:
        """The replay with the model as it is for the old and the current policy."""
        scores = self.learner.log_probs(self.batch.parts, entropy=True)
        return replace(self, batch=self.batch.scored(scores))

    def loss(self, name: str) -> PresetLoss:
        """The loss of a preset on the whole batch."""
        return loss_of_preset(name, self.batch, self.update)


def minibatches(rows: int, count: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each mini-batch, shuffled anew every epoch; one of all rows needs no shuffle."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = np.arange(rows) if count == 1 else random.permutation(rows)
        yield from (np.sort(part) for part in np.array_split(order, count) if len(part))


def train(replay: ModelReplay, name: str, first: Any = None) -> float:
    """Take every optimizer step of one preset; give the norm of all steps together.

    `first` is the gradient of the first step if it is known. In decoupled mode weights and mask are
    made once, from the whole batch, as trainers do; in bypass mode anew from the current policy of
    every mini-batch.
    """
    if replay.update.rebaseline:  # of the whole batch, before the first mini-batch
        replay = replace(replay, batch=replay.loss(name).batch)
    rows, training = len(replay.batch.lengths), replay.training
    bypass = name != NAIVE and replay.update.plan.corrections[name].mode == "bypass"
    effect = None if bypass else apply_preset(name, replay.batch, replay.update)
    parts = minibatches(rows, training.minibatches, training.epochs, training.seed)
    squares = 0.0
    for index, chosen in enumerate(parts):
        gradient = first if index == 0 and len(chosen) == rows else None
        if gradient is None:
            gradient = _gradient(replay, name, effect, chosen, later=index > 0)
        if gradient is not None:
            step = replay.learner.apply(gradient, training.optimizer_settings)
            squares += step.step_norm**2
    return float(np.sqrt(squares))


def _gradient(
    replay: ModelReplay,
    name: str,
    whole: PresetEffect | None,
    rows: NDArray[np.int64],
    *,
    later: bool,
) -> Any:
    """Gradient of one mini-batch at the current weights; None where its loss is not defined.

    `whole` is the effect on the whole batch where it is fixed before the first mini-batch. `later`
    mini-batches have other current log-probs than the batch was read with.
    """
    part, learner = replay.batch.take(rows), replay.learner
    if later:
        part = part.with_current(learner.log_probs(part.parts).log_probs)
    if whole is None:
        effect = apply_preset(name, part, replay.update)
    else:
        lengths = replay.batch.lengths
        effect = whole.take(np.repeat(np.isin(np.arange(len(lengths)), rows), lengths))
    loss = loss_of_effect(effect, part, replay.update)
    if loss.result.undefined or not np.isfinite(loss.coefficients).all():
        return None
    return learner.gradients(part.parts, loss.coefficients[None]).whole[0]
