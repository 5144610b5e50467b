"""tinker-cookbook logs how far sampler and trained policy are apart: `optim/`.

The trained policy's log-probs are those of the forward pass of an update, which in the first one
are the old ones. Source: thinking-machines-lab/tinker-cookbook commit 9dfcc3a2 (2026-08-19),
tinker_cookbook/rl/metrics.py (`compute_kl_sample_train`).
"""

from __future__ import annotations

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import LOG_RATIO
from rcdiag.corrections.trainer_means import Batch, Metrics


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return two estimates of KL and the sampler's surprise, means over tokens."""
    rows = batch.rows
    return {
        "optim/kl_sample_train_v1": -float(rows.sum(LOG_RATIO).sum()) / rows.tokens,
        "optim/kl_sample_train_v2": 0.5 * float(rows.squares(LOG_RATIO).sum()) / rows.tokens,
        "optim/entropy": -float(rows.behavior.sum()) / rows.tokens,
    }
