"""slime's metrics of a correction: of its clamp and IcePop, and of the MIS helper.

Means are over sequences, or over tokens with --calculate-per-token-loss. slime computes them per
micro-batch and rank; here there is one batch. Sources: slime commit 624b824a8 (2026-08-21),
slime/backends/megatron_utils/loss.py (`vanilla_tis_function`, `icepop_function`,
`policy_loss_function`) and examples/train_infer_mismatch_helper/mis.py
(`compute_mis_weights_with_cp`, `add_ppl_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    applied_weights,
    below_veto,
    log_ratio,
    raw_weights,
    vetoed_rows,
)
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import (
    LOG_RATIO,
    RATIO,
    bare_log_ratio,
    named,
    unclamped_k3,
)
from rcdiag.corrections.sequences import EPSILON
from rcdiag.corrections.trainer_means import Batch, Metrics, OfTokens, perplexities
from rcdiag.trainers.slime.correction import logged_of

DISTANCE = "train_rollout_logprob_abs_diff"


def mean_of_rows(batch: Batch, values: NDArray[Any]) -> float:
    """Return the mean of `values` [rows] over all rows; a row without a token adds 0."""
    return float(values.sum() / batch.all_rows)


Mean = Callable[[Batch, NDArray[Any]], float]


def helper_metrics(batch: Batch, correction: Correction, mean: Mean = mean_of_rows) -> Metrics:
    """Return the metrics of the MIS helper, under their full keys.

    `mean` averages row values over rows, or over tokens if the loss is per token.
    """
    logged = _off_policy(batch, mean)
    if correction.weighting is not None:
        logged |= _weights(batch, correction, mean)
        logged |= _rejected(batch, correction, mean)
        logged |= _final(batch, correction, mean)
    return {f"mis_{name}": value for name, value in logged.items()}


def _row_means(batch: Batch, values: OfTokens) -> NDArray[np.float64]:
    return batch.rows.sum(values) / batch.rows.lengths


def _off_policy(batch: Batch, mean: Mean) -> Metrics:
    rows = batch.rows
    sums = np.clip(rows.sum(LOG_RATIO), -SAFETY_BOUND, SAFETY_BOUND)
    of_rows = {
        **perplexities(rows.target / rows.lengths, rows.behavior / rows.lengths),
        "kl": -_row_means(batch, LOG_RATIO),
        "k3_kl": _row_means(batch, unclamped_k3),
        "chi2_token": rows.squares(RATIO) / rows.lengths - 1.0,
        "chi2_seq": np.exp(2.0 * sums) - 1.0,
    }
    return {name: mean(batch, values) for name, values in of_rows.items()}


def _weights(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    weighting = correction.weighting
    assert weighting is not None
    raw, applied = raw_weights(batch.rows, weighting), applied_weights(batch.rows, weighting)
    low, high = _beyond(
        batch, weighting.level, weighting.lower_or_reciprocal, weighting.upper, mean
    )
    logged = {"tis_weight_before_bound": mean(batch, _row_means(batch, raw))}
    if weighting.outside == "truncate":
        logged["tis_truncate_fraction"] = high
    else:
        logged |= {
            f"tis_{weighting.outside}_fraction_low": low,
            f"tis_{weighting.outside}_fraction_high": high,
        }
    logged["tis_weight_after_bound"] = mean(batch, _row_means(batch, applied))
    return logged


def _beyond(
    batch: Batch, level: Any, lower: float, upper: float, mean: Mean
) -> tuple[float, float]:
    """Return the means over sequences of the shares below and above the bounds."""
    rows = batch.rows
    if level == "token":
        below = _row_means(batch, lower > RATIO)
        above = _row_means(batch, upper < RATIO)
    else:
        clamped = np.clip(log_ratio(rows, level), -SAFETY_BOUND, SAFETY_BOUND)
        below = (np.exp(clamped) < lower).astype(np.float64)
        above = (np.exp(clamped) > upper).astype(np.float64)
    return mean(batch, below), mean(batch, above)


def _rejected(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    # Mode `mask` adds its own rejection before that of `use_rs`.
    assert correction.weighting is not None
    masks = correction.weighting.outside == "mask"
    rejections = correction.rejections[1:] if masks else correction.rejections
    if not rejections:
        return {}
    rejection = rejections[0]
    low, high = _beyond(batch, rejection.statistic, rejection.lower or 0.0, rejection.upper, mean)
    logged = {"rs_mask_fraction_low": low, "rs_mask_fraction_high": high}
    if correction.veto is not None:
        below = _row_means(batch, below_veto(correction.veto))
        logged["rs_catastrophic_token_fraction"] = mean(batch, below)
        vetoed = vetoed_rows(batch.rows, correction.veto)
        logged["rs_catastrophic_seq_fraction"] = mean(batch, vetoed)
    return logged


def normaliser(batch: Batch, correction: Correction) -> float:
    """Return the divisor of weights: their mean over tokens or sequences; 1 if it is tiny."""
    weighting = correction.weighting
    if weighting is None or not correction.batch_normalize:
        return 1.0
    applied = applied_weights(batch.rows, weighting)
    if weighting.level == "token":
        mean = float(batch.rows.sum(applied).sum() / batch.rows.tokens)
    else:
        mean = mean_of_rows(batch, _row_means(batch, applied))
    return mean if mean > EPSILON else 1.0


def _final(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    """Return statistics of weights after normalisation but before rejection, despite their keys."""
    weighting = correction.weighting
    assert weighting is not None
    applied = applied_weights(batch.rows, weighting)
    factor = normaliser(batch, correction)
    means = _row_means(batch, applied)
    logged = {"is_ratio_mean_after_tis_rs": mean(batch, means)}
    if correction.batch_normalize:
        logged["batch_norm_factor"] = mean(batch, np.full(len(batch.rows), factor))
    return logged | {
        "is_ratio_mean_final": mean(batch, means / factor),
        "is_ratio_min_final": mean(batch, batch.rows.min(applied) / factor),
        "is_ratio_max_final": mean(batch, batch.rows.max(applied) / factor),
    }


def mean_of_tokens(batch: Batch, values: NDArray[Any]) -> float:
    """Return the mean of row means weighted by tokens; a row without a token counts as one."""
    return float((values * batch.rows.lengths).sum() / (batch.rows.tokens + batch.rows.empty))


def mean_of(per_token: bool) -> Mean:
    """Return the function by which slime averages row values."""
    return mean_of_tokens if per_token else mean_of_rows


def ratio_metrics(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    """Return what the clamp and IcePop log about the ratios that they bound."""
    weighting = correction.weighting
    assert weighting is not None
    unbounded = RATIO.within(weighting.lower_or_reciprocal, weighting.upper)
    of_rows = {
        "tis": _row_means(batch, RATIO),
        "tis_abs": _row_means(batch, named("distance")),
        "tis_clipfrac": 1.0 - _row_means(batch, unbounded),
    }
    return {name: mean(batch, values) for name, values in of_rows.items()}


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the metrics of the chosen function, under their keys without `train/`."""
    function, per_token = logged_of(correction)
    mean = mean_of(per_token)
    if function == "helper":
        return helper_metrics(batch, correction, mean)
    # With --use-rollout-logprobs, slime uses the current policy, which initially is the old one.
    distances = mean(batch, _row_means(batch, abs(bare_log_ratio)))
    ratios = {} if function == "none" else ratio_metrics(batch, correction, mean)
    return {DISTANCE: distances, **ratios}
