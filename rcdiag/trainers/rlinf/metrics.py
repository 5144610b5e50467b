"""RLinf's metrics: the distance of old and rollout, or what its decoupled loss drops.

Sources: RLinf/RLinf commit a3816b59 (2026-08-22), rlinf/workers/actor/fsdp_actor_worker.py
(`compute_rollout_train_kl`), rlinf/algorithms/losses.py (`compute_decoupled_ppo_actor_loss`).
"""

from __future__ import annotations

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import LOG_RATIO, bare_log_ratio, stays
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.rlinf.correction import DECOUPLED


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return means over tokens; without old log-probs nothing is logged."""
    if correction.logging == DECOUPLED:
        return _behaviour(batch, correction)
    if correction.mode == "bypass":
        return {}
    distances = batch.rows.sum(abs(bare_log_ratio))
    return {"actor/rollout_train_kl": float(distances.sum()) / batch.rows.tokens}


def _behaviour(batch: Batch, correction: Correction) -> Metrics:
    """Return k1 of the kept tokens, and the share of the others.

    A count of 0 is replaced by 1.
    """
    rows, log_ratios = batch.rows, LOG_RATIO
    kept = float(rows.tokens)
    if correction.rejections:
        is_kept = stays(correction.rejections)
        kept, log_ratios = float(rows.sum(is_kept).sum()), LOG_RATIO.where(is_kept)
    kept = kept or 1.0
    return {
        "actor/behav_approx_kl": -float(rows.sum(log_ratios).sum()) / kept,
        "actor/behav_clip_fraction": 1.0 - kept / (rows.tokens or 1.0),
    }
