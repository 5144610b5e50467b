"""tinker-cookbook's metrics of the distance between sampler and trained policy: `optim/`.

The trained policy's log-probs are from the forward pass of an update; in the first update they are
the old ones. Source: thinking-machines-lab/tinker-cookbook commit 9dfcc3a2 (2026-08-19),
tinker_cookbook/rl/metrics.py (`compute_kl_sample_train`).
"""

from __future__ import annotations

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import LOG_RATIO
from rcdiag.corrections.trainer_means import Batch, Metrics


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return two estimates of the KL and the sampler's mean surprisal, per token."""
    rows = batch.rows
    return {
        "optim/kl_sample_train_v1": -float(rows.sum(LOG_RATIO).sum()) / rows.tokens,
        "optim/kl_sample_train_v2": 0.5 * float(rows.squares(LOG_RATIO).sum()) / rows.tokens,
        "optim/entropy": -float(rows.behavior.sum()) / rows.tokens,
    }
