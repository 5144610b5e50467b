"""The policy after a step, on the same batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import AfterStep, MetricValue
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.moments import mean
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]


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
        mismatch_growth=_quotient(rollout_new.value, rollout_old.value),
        reward_before=reward_before,
        reward_after=reward_after,
    )


def k3_kl(batch: ReplayBatch, behavior: Array, target: Array) -> MetricValue:
    """Mean of ratio - 1 - log_ratio over the tokens, nats, with its interval by prompt group."""
    log_ratio = target - behavior
    with np.errstate(over="ignore"):
        values = np.expm1(log_ratio) - log_ratio
    rows = np.stack([segment_sum(values, batch.lengths), batch.lengths.astype(float)], axis=1)
    sums = cluster_sums(batch.group, rows).sums
    return mean(sums[:, 0], sums[:, 1], floor=0.0)


def mean_reward(reward: Array, group: NDArray[np.uint64]) -> MetricValue:
    """Mean reward of samples, with its interval by prompt."""
    rows = np.stack([reward, np.ones(len(reward))], axis=1)
    sums = cluster_sums(group, rows).sums
    return mean(sums[:, 0], sums[:, 1])


def _mean(values: Array | None) -> float | None:
    return float(values.mean()) if values is not None and len(values) else None


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
