"""open-instruct's metrics: the distance of the log-probs, and the effect of rho's clamp and mask.

Means are over the tokens of all packs; here the table is one pack. Sources: open-instruct commit
e6c3044a, open_instruct/grpo_utils.py (`compute_vllm_local_debug_metrics`,
`compute_rho_correction`, `create_loss_stats`) and open_instruct/rl_utils.py (`masked_mean`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import outcome, raw_weights
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.quantities import RATIO, bounded, differs, log_prob, stays
from rcdiag.corrections.trainer_means import Batch, Metrics

_RHO = ("drop_frac", "drop_low_frac", "drop_high_frac", "weight", "clipfrac")


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics; without the correction, those of rho are logged as 0."""
    logged = _distances(batch) | dict.fromkeys((f"val/rho_{name}" for name in _RHO), 0.0)
    if correction.weighting is not None:
        logged |= _rho(batch, correction, correction.weighting)
    return logged


def _distances(batch: Batch) -> Metrics:
    rows, count = batch.rows, batch.rows.tokens
    old, rollout = log_prob("target"), log_prob("behavior")  # before any clamp
    distance = abs(old - rollout)
    # The trainer calls this a reverse KL.
    weighed_difference = rollout.exp() * (rollout - old)
    mean = rows.sum(distance).sum() / count
    spread = max(rows.squares(distance).sum() - count * mean**2, 0.0)
    return {
        "debug/vllm_vs_local_logprob_diff_mean": float(mean),
        "debug/vllm_vs_local_logprob_diff_max": float(rows.max(distance).max()),
        "debug/vllm_vs_local_logprob_diff_std": (
            float(np.sqrt(spread / (count - 1))) if count > 1 else 0.0
        ),
        "debug/vllm_local_reverse_kl": float(rows.sum(weighed_difference).sum() / count),
    }


def _rho(batch: Batch, correction: Correction, weighting: Weighting) -> Metrics:
    rows, count = batch.rows, batch.rows.tokens
    weights = outcome(rows, correction).weights
    assert weights is not None
    low, high = weighting.lower_or_reciprocal, weighting.upper
    if weighting.by_token:
        clipped = rows.sum(differs(RATIO, RATIO.clip(low, high))).sum()
    else:
        ratios = rows.max(raw_weights(rows, weighting))
        clipped = rows.lengths[ratios != bounded(ratios, low, high, "clip")].sum()
    dropped = {
        "low" if test.lower is not None else "high": count - rows.sum(stays((test,))).sum()
        for test in correction.zeroing
    }
    return {
        "val/rho_drop_frac": float(1.0 - rows.sum(stays(correction.zeroing)).sum() / count),
        "val/rho_drop_low_frac": float(dropped.get("low", 0.0) / count),
        "val/rho_drop_high_frac": float(dropped.get("high", 0.0) / count),
        "val/rho_weight": float(weights.sum.sum() / count),
        "val/rho_clipfrac": float(clipped / count),
    }
