"""Real updates: the optimizer steps of one preset, and the policy after them on the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.results import AfterStep, MetricValue
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.moments import mean
from rcdiag.usecases.replay.preset import (
    PresetEffect,
    PresetLoss,
    apply_preset,
    loss_of_effect,
    loss_of_preset,
)
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update import NAIVE, TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch

if TYPE_CHECKING:
    from rcdiag.learning.trainee import Trainee

Array = NDArray[np.float64]


class ModelReplay(Struct, frozen=True, kw_only=True, eq=False):
    """What all updates of a model on one batch share."""

    learner: Trainee
    update: TrainerUpdate
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


def after_step(
    batch: ReplayBatch,
    new: Array,
    *,
    clip_range: tuple[float, float],
    learning_rate: float,
    step_norm: float,
    entropy: Array | None = None,
    rewards: tuple[MetricValue | None, MetricValue | None] = (None, None),
) -> AfterStep:
    """Compare the policy after a step with that before it, on the recorded tokens.

    `new` are its log-probs and `entropy` its entropies, [tokens] nats; `clip_range` is where the
    PPO ratio is not clipped, `rewards` are means of fresh samples before and after.
    """
    change = new - batch.old
    rollout_new, rollout_old = (
        k3_kl(batch, batch.rollout, new),
        k3_kl(batch, batch.rollout, batch.old),
    )
    ratio = np.exp(np.clip(change, -50.0, 50.0))
    reward_before, reward_after = rewards
    growth = None
    if rollout_new.value is not None and rollout_old.value:
        growth = rollout_new.value / rollout_old.value
    return AfterStep(
        learning_rate=learning_rate,
        step_norm=step_norm,
        kl_old_new=k3_kl(batch, batch.old, new),
        kl_rollout_new=rollout_new,
        log_prob_change_positive=_mean(change[batch.advantages > 0]),
        log_prob_change_negative=_mean(change[batch.advantages < 0]),
        entropy_before=_mean(batch.tokens.entropy.get("old")),
        entropy_after=_mean(entropy),
        perplexity_before=float(np.exp(-batch.old.mean())),
        perplexity_after=float(np.exp(-new.mean())),
        beyond_clip=float(((ratio < clip_range[0]) | (ratio > clip_range[1])).mean()),
        mismatch_growth=growth,
        reward_before=reward_before,
        reward_after=reward_after,
    )


def k3_kl(batch: ReplayBatch, behavior: Array, target: Array) -> MetricValue:
    """Mean of ratio - 1 - log_ratio over the tokens, nats, with its interval by prompt group."""
    sums = cluster_sums(batch.group, batch.k3_by_row(behavior, target)).sums
    return mean(sums[:, 0], sums[:, 1], floor=0.0)


def mean_reward(reward: Array, group: NDArray[np.uint64]) -> MetricValue:
    """Mean reward of samples, with its interval by prompt."""
    rows = np.stack([reward, np.ones(len(reward))], axis=1)
    sums = cluster_sums(group, rows).sums
    return mean(sums[:, 0], sums[:, 1])


def _mean(values: Array | None) -> float | None:
    return float(values.mean()) if values is not None and len(values) else None
