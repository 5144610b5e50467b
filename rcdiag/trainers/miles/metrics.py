"""miles' metrics: the effect of its functions on weights, and the distance of log-probs.

Means are over sequences, or over tokens with --calculate-per-token-loss. Sources: miles commit
31f1ca96, miles/backends/training_utils/loss_hub/losses.py (`policy_loss_function`),
corrections.py and math_utils.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import outcome, stays_by_token
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import bare_log_ratio, finite, quantity
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.slime.correction import logged_of
from rcdiag.trainers.slime.metrics import (
    Mean,
    helper_metrics,
    mean_of,
    ratio_metrics,
)


@quantity
def low_variance_kl(tokens: Tokens) -> Array:
    """Return ratio - log_ratio - 1, nats, at most 10.

    The log-ratio is clamped to +-20, and is 0 for NaN.
    """
    raw = tokens.raw_log_ratio
    held = np.clip(np.where(np.isnan(raw), 0.0, raw), -20.0, 20.0)
    result: Array = np.minimum(np.expm1(held) - held, 10.0)
    return result


_OF_POLICIES = {
    "train_rollout_logprob_abs_diff": abs(bare_log_ratio).where(finite(bare_log_ratio)),
    "train_rollout_kl": low_variance_kl,
}


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics of sampler and trainer, under their keys without `train/`."""
    function, per_token = logged_of(correction)
    mean = mean_of(per_token)
    logged = _of_policies(batch, correction, mean)
    if function == "helper":
        return logged | helper_metrics(batch, correction, mean)
    return logged if function == "none" else logged | ratio_metrics(batch, correction, mean)


def _of_policies(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    """Return sums over kept tokens divided by all tokens; 0 if the rollout is the old policy."""
    if correction.mode == "bypass":
        return dict.fromkeys(_OF_POLICIES, 0.0)
    rows, kept = batch.rows, outcome(batch.rows, correction).kept
    by_token = stays_by_token(correction.rejections)
    sums = {
        name: rows.sum(one if by_token is None else one.where(by_token))
        for name, one in _OF_POLICIES.items()
    }
    return {
        name: mean(batch, np.where(kept > 0, values, 0.0) / rows.lengths)
        for name, values in sums.items()
    }
