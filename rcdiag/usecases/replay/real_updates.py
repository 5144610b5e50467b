"""Real updates: the optimizer steps of one preset, and the policy after them on the batch."""

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
    """The model, update, training and batch that all presets of a replay share."""

    learner: Trainee
    update: TrainerUpdate
    training: Training
    batch: ReplayBatch

    def scored(self) -> ModelReplay:
        """Return the replay with the model's present log-probs as old and current ones."""
        scores = self.learner.log_probs(self.batch.parts, entropy=True)
        return replace(self, batch=self.batch.scored(scores))

    def loss(self, name: str) -> PresetLoss:
        """Return the loss of a preset on the whole batch."""
        return loss_of_preset(name, self.batch, self.update)


def minibatches(rows: int, count: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each mini-batch, reshuffled every epoch unless there is only one."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = np.arange(rows) if count == 1 else random.permutation(rows)
        yield from (np.sort(part) for part in np.array_split(order, count) if len(part))


def train(replay: ModelReplay, name: str, first: Any = None) -> float:
    """Take every optimizer step of one preset; return sqrt(sum of squared norms of the steps).

    `first` is the gradient of the first step, if it is known. As in trainers, weights and mask are
    computed once from the whole batch in decoupled mode, and for every mini-batch from the current
    policy in bypass mode.
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
            squares += replay.learner.apply(gradient, training.optimizer_settings) ** 2
    return float(np.sqrt(squares))


def _gradient(
    replay: ModelReplay,
    name: str,
    whole: PresetEffect | None,
    rows: NDArray[np.int64],
    *,
    later: bool,
) -> Any:
    """Return the gradient of one mini-batch at the present weights; None if its loss is undefined.

    `whole` is the preset's effect on the whole batch, if that is computed before the first
    mini-batch. For `later` mini-batches the current log-probs are computed again.
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
    """Compare the policy after a step with the one before, on the recorded tokens.

    `new` are the new policy's log-probs and `entropy` its entropies, [tokens] nats; `clip_range` is
    the range of unclipped PPO ratios, `rewards` are mean rewards of fresh samples before and after.
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
    """Return E[ratio - 1 - log_ratio] over tokens, nats, with its interval over prompt groups."""
    sums = cluster_sums(batch.group, batch.k3_by_row(behavior, target)).sums
    return mean(sums[:, 0], sums[:, 1], floor=0.0)


def mean_reward(reward: Array, group: NDArray[np.uint64]) -> MetricValue:
    """Return the mean reward of samples, with its interval over prompts."""
    rows = np.stack([reward, np.ones(len(reward))], axis=1)
    sums = cluster_sums(group, rows).sums
    return mean(sums[:, 0], sums[:, 1])


def _mean(values: Array | None) -> float | None:
    return float(values.mean()) if values is not None and len(values) else None
