"""ms-swift's metrics of the two policies and of its weights, with the table as one micro-batch.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, `_compute_rollout_offpolicy_metrics`
and `_compute_is_correction_metrics`.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import applied_weights, ratio, token_weight
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, bare_log_ratio, named
from rcdiag.corrections.sequences import EPSILON
from rcdiag.corrections.trainer_means import Batch, Metrics, perplexities

PREFIX = "rollout_correction/"
K3_BOUND = 10.0  # nats
LOGS = "offpolicy metrics"  # value of `Correction.logging` if they are logged


def bound_of(correction: Correction) -> float | None:
    """Return the upper bound on ratios of tokens or sequences; None without a mode."""
    if correction.zeroing:
        return correction.zeroing[0].upper
    return None if correction.weighting is None else correction.weighting.upper


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics under their full keys; rows without a token count."""
    if not correction.logging:
        return {}
    logged = _of_policies(batch)
    if (upper := bound_of(correction)) is not None:
        logged |= _of_weights(batch, correction, upper)
    return {PREFIX + name: value for name, value in logged.items()}


def _of_policies(batch: Batch) -> Metrics:
    rows = batch.rows
    of_rows = perplexities(
        batch.padded(rows.target / rows.lengths), batch.padded(rows.behavior / rows.lengths)
    )
    # Metrics use the log-ratio without the clamp that weights have.
    log_ratio = rows.sum(bare_log_ratio)
    geometric = batch.padded(log_ratio / rows.lengths)
    chi2_seq = np.exp(2.0 * np.clip(geometric, -SAFETY_BOUND, SAFETY_BOUND)).mean() - 1.0
    return {
        **{name: float(values.mean()) for name, values in of_rows.items()},
        "kl": float(-log_ratio.sum() / rows.tokens),
        "k3_kl": float(rows.sum(named("k3").clip(upper=K3_BOUND)).sum() / rows.tokens),
        "log_ppl_diff_max": float(of_rows["log_ppl_diff"].max()),
        "log_ppl_diff_min": float(of_rows["log_ppl_diff"].min()),
        "chi2_token": float(rows.squares(RATIO).sum() / rows.tokens - 1.0),
        "chi2_seq": float(chi2_seq),
    }


def _of_weights(batch: Batch, correction: Correction, upper: float) -> Metrics:
    rows, weighting = batch.rows, correction.weighting
    assert weighting is not None
    by_token = weighting.by_token
    weights = token_weight(correction) if by_token else applied_weights(rows, weighting)
    # The ESS is of weights clipped to [1 / upper, upper].
    clamped = weights.clip(1.0 / upper, upper)
    mean = rows.sum(clamped).sum() / rows.tokens
    squares = rows.squares(clamped).sum() / rows.tokens / (mean + EPSILON) ** 2
    if weighting.by_token and not correction.zeroing:
        beyond = rows.sum(upper < RATIO).sum() / rows.tokens
    else:
        beyond = batch.padded((ratio(rows, "geometric") > upper).astype(np.float64)).mean()
    return {
        "is_weight_mean": float(rows.sum(weights).sum() / rows.tokens),
        "ess": float(1.0 / np.maximum(squares, 1e-10)),
        "clipped_frac": float(beyond),
    }
