"""The policy after a step, on the same batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import AfterStep, MetricValue
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.moments import mean
from rcdiag.table.segments import segment_sum
from rcdiag.usecases.replay.batch import ReplayBatch

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """What the learner says after a step."""

    log_probs: Array  # [tokens]
    entropy_before: Array | None
    entropy_after: Array | None
    step_norm: float
    reward_before: MetricValue | None = None
    reward_after: MetricValue | None = None


def after_step(
    batch: ReplayBatch, stepped: Stepped, clip: tuple[float, float], learning_rate: float
) -> AfterStep:
    """Divergences by k3 on the recorded tokens; `clip` is the range of the PPO ratio."""
    new = stepped.log_probs
    change = new - batch.old
    old_new = k3_kl(batch, batch.old, new)
    rollout_new, rollout_old = (
        k3_kl(batch, batch.rollout, new),
        k3_kl(batch, batch.rollout, batch.old),
    )
    ratio = np.exp(np.clip(change, -50.0, 50.0))
    return AfterStep(
        learning_rate=learning_rate,
        step_norm=stepped.step_norm,
        kl_old_new=old_new,
        kl_rollout_new=rollout_new,
        log_prob_change_positive=_mean(change[batch.advantages > 0]),
        log_prob_change_negative=_mean(change[batch.advantages < 0]),
        entropy_before=_mean(stepped.entropy_before),
        entropy_after=_mean(stepped.entropy_after),
        perplexity_before=float(np.exp(-batch.old.mean())),
        perplexity_after=float(np.exp(-new.mean())),
        beyond_clip=float(((ratio < clip[0]) | (ratio > clip[1])).mean()),
        mismatch_growth=_over(rollout_new.value, rollout_old.value),
        reward_before=stepped.reward_before,
        reward_after=stepped.reward_after,
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


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None
