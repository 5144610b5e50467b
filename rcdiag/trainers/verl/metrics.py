"""verl's metrics of a correction, and its divisor of weights, by generation.

All metrics use the mask before rejection, and rows without a token count in every mean over rows.
Sources: packages verl 0.6.0 to 0.9.1, verl/trainer/ppo/mismatch_helper.py (0.6.0) and
rollout_corr_helper.py (`compute_is_metrics`, `compute_rs_metrics`, `compute_offpolicy_metrics`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rcdiag.corrections.apply import (
    applied_weights,
    below_veto,
    clipped_weights,
    log_ratio,
    outcome,
    ratio,
    raw_weights,
    statistic_of_rows,
    vetoed_rows,
)
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.quantities import LOG_RATIO, RATIO, named, unclamped_k3, within
from rcdiag.corrections.sequences import EPSILON
from rcdiag.corrections.trainer_means import (
    Batch,
    Metrics,
    OfTokens,
    once_a_batch,
    perplexities,
    row_statistics,
    share,
)
from rcdiag.statistics.quantiles import Ordered

Statistics = Literal["raw", "applied"]

PERCENTILES = (25, 50, 75, 95, 99)


@once_a_batch
def off_policy(batch: Batch) -> Metrics:
    """Return KL, perplexities and chi-squared, without a prefix; only chi2 is clamped."""
    rows = batch.rows
    training = batch.padded(rows.target / (rows.lengths + rows.epsilon))
    rollout = batch.padded(rows.behavior / (rows.lengths + rows.epsilon))
    of_rows = perplexities(training, rollout)
    sums = batch.padded(rows.sum(LOG_RATIO))
    squared = np.exp(2.0 * np.clip(sums, -SAFETY_BOUND, SAFETY_BOUND))
    return {
        **{name: float(values.mean()) for name, values in of_rows.items()},
        "kl": -batch.token_mean(LOG_RATIO),
        "k3_kl": batch.token_mean(unclamped_k3),
        "log_ppl_diff_max": float(of_rows["log_ppl_diff"].max()),
        "log_ppl_diff_min": float(of_rows["log_ppl_diff"].min()),
        "chi2_token": batch.token_mean_of_squares(RATIO) - 1.0,
        "chi2_seq": float(squared.mean()) - 1.0,
    }


@once_a_batch
def weight_metrics(
    batch: Batch,
    weighting: Weighting,
    prefix: str,
    *,
    of: Statistics,
    fractions_of: Statistics = "raw",
    geometric_fractions: Literal["tokens", "rows"] = "rows",
) -> Metrics:
    """Return statistics of weights (`rollout_is_*`) or of ratio rejection (`rollout_rs_*`).

    `of` is "raw" up to 0.7.1 (the ratio) and "applied" from 0.8.0 on (the applied weights).
    `fractions_of` says which of them `seq_fraction_*` compares with the bounds: "applied" only in
    0.8.0 (verl #6806).
    """
    rows = batch.rows
    raw = raw_weights(rows, weighting)
    used = raw if of == "raw" else applied_weights(rows, weighting)
    clipped = clipped_weights(rows, weighting) if of == "raw" else used
    compared = batch.padded(batch.row_means(raw if fractions_of == "raw" else used))
    metrics = {
        "mean": batch.token_mean(used),
        **_bounds(batch, weighting, used, geometric_fractions),
        "std": batch.token_std(clipped),
        "eff_sample_size": batch.ess(clipped),
        **row_statistics(batch.padded(batch.row_means(used)), 1.0),
        "seq_fraction_high": share(compared > weighting.upper),
        "seq_fraction_low": share(compared < weighting.lower_or_reciprocal),
    }
    return {f"{prefix}_{name}": value for name, value in metrics.items()}


def _bounds(
    batch: Batch, weighting: Weighting, used: OfTokens, geometric_fractions: str
) -> Metrics:
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.level == "token":
        return {
            "max": float(batch.rows.max(used).max()),
            "min": float(batch.rows.min(used).min()),
            "ratio_fraction_high": batch.token_mean(upper < RATIO),
            "ratio_fraction_low": batch.token_mean(lower > RATIO),
        }
    logs = log_ratio(batch.rows, weighting.level)
    padded = batch.padded(logs)
    # verl stores the logs of its bounds in float32, whatever the dtype of the log-probs.
    high, low = (
        padded > float(np.log(np.float32(upper))),
        padded < float(np.log(np.float32(lower))),
    )
    if weighting.level == "geometric" and geometric_fractions == "tokens":
        lengths = batch.rows.lengths
        of_tokens = [
            batch.token_share(float((flags[: len(lengths)] * lengths).sum()))
            for flags in (high, low)
        ]
    else:
        of_tokens = [share(high), share(low)]
    return {
        "max": float(np.exp(min(padded.max(), SAFETY_BOUND))),
        "min": float(np.exp(padded.min())),
        "ratio_fraction_high": of_tokens[0],
        "ratio_fraction_low": of_tokens[1],
    }


@once_a_batch
def k_metrics(batch: Batch, rejection: Rejection) -> Metrics:
    """Return statistics of one k1, k2 or k3 rejection (`rollout_rs_{option}_*`, from 0.7.1 on)."""
    find = _token_k_metrics if rejection.of_tokens else _sequence_k_metrics
    prefix = f"rollout_rs_{rejection.statistic}"
    return {f"{prefix}_{name}": value for name, value in find(batch, rejection).items()}


def _token_k_metrics(batch: Batch, rejection: Rejection) -> Metrics:
    rows, k = batch.rows, named(rejection.statistic[-2:])
    lower = 0.0 if rejection.lower is None else rejection.lower
    low = 0.0 if rejection.lower is None else batch.token_mean(k < rejection.lower)
    no_less = -np.inf if rejection.lower is None else rejection.lower
    return {
        "mean": batch.token_mean(k),
        "max": float(rows.max(k).max()),
        "min": float(rows.min(k).min()),
        "fraction_high": batch.token_mean(k > rejection.upper),
        "fraction_low": low,
        "std": batch.token_std(k.clip(lower, rejection.upper)),
        **_of_valid_rows(batch.row_means(k), rejection),
        **_masked(batch, rows.sum(k.within(no_less, rejection.upper))),
    }


def _sequence_k_metrics(batch: Batch, rejection: Rejection) -> Metrics:
    values = statistic_of_rows(batch.rows, rejection)
    lengths = batch.rows.lengths
    lower = 0.0 if rejection.lower is None else rejection.lower
    keep = (values <= rejection.upper) & (rejection.lower is None or values >= lower)
    low = 0.0 if rejection.lower is None else share(values < lower)
    clipped = np.clip(values, lower, rejection.upper)
    return {
        "mean": batch.token_mean(values),
        "max": float(values.max()),
        "min": float(values.min()),
        "fraction_high": share(values > rejection.upper),
        "fraction_low": low,
        "std": batch.token_std(clipped),
        **_of_valid_rows(values, rejection),
        **_masked(batch, np.where(keep, lengths, 0.0)),
    }


def _of_valid_rows(values: np.ndarray, rejection: Rejection) -> Metrics:
    logged = row_statistics(values, 0.0)
    logged["seq_fraction_high"] = share(values > rejection.upper)
    if rejection.lower is not None:
        logged["seq_fraction_low"] = share(values < rejection.lower)
    return logged


def _masked(batch: Batch, kept: np.ndarray) -> Metrics:
    """Return the shares of rejected tokens and of rows with one, among rows with a token."""
    lengths = batch.rows.lengths
    rejected = float((lengths - kept).sum())
    return {
        "masked_fraction": batch.token_share(rejected),
        "seq_masked_fraction": share(kept < lengths),
    }


def masked_fractions(batch: Batch, kept: np.ndarray, padding_rejected: float = 0.0) -> Metrics:
    """Return `rollout_rs_masked_fraction` and `rollout_rs_seq_masked_fraction`, over all rows."""
    lengths = batch.rows.lengths
    touched = batch.padded((kept < lengths).astype(np.float64), padding_rejected)
    return {
        "rollout_rs_masked_fraction": batch.token_share(float((lengths - kept).sum())),
        "rollout_rs_seq_masked_fraction": float(touched.mean()),
    }


def normaliser(batch: Batch, correction: Correction, *, valid_rows: bool = True) -> float:
    """Return the mean by which applied weights are divided; 1 if it is at most 1e-8.

    The mean is over tokens, or over row means: of all rows up to 0.6.1, of rows with a token from
    0.7.0 on.
    """
    weighting = correction.weighting
    if weighting is None or not correction.batch_normalize:
        return 1.0
    applied = applied_weights(batch.rows, weighting)
    if weighting.level == "token":
        mean = batch.token_mean(applied)
    else:
        means = batch.row_means(applied)
        mean = float((means if valid_rows else batch.padded(means)).mean())
    return mean if mean > EPSILON else 1.0


def out_of_bounds(batch: Batch, weighting: Weighting) -> float:
    """Return the share of tokens that IcePop zeroes, `rollout_is_oob_ratio`."""
    if weighting.level == "token":
        above = batch.token_mean(weighting.upper < RATIO)
        return above + batch.token_mean(weighting.lower_or_reciprocal > RATIO)
    raw = ratio(batch.rows, weighting.level)
    outside = (raw < weighting.lower_or_reciprocal) | (raw > weighting.upper)
    return batch.token_mean(outside.astype(np.float64))


def metrics(
    batch: Batch, correction: Correction, *, of: Statistics, fractions_of: Statistics
) -> Metrics:
    """Return the metrics of 0.7.1 and later, under their full keys."""
    logged: Metrics = {}
    weighting = correction.weighting
    if weighting is not None:
        logged |= weight_metrics(batch, weighting, "rollout_is", of=of, fractions_of=fractions_of)
        if weighting.outside == "zero":
            logged["rollout_is_oob_ratio"] = out_of_bounds(batch, weighting)
        if correction.batch_normalize:
            logged["rollout_is_batch_norm_factor"] = normaliser(batch, correction)
    for rejection in correction.rejections:
        logged |= k_metrics(batch, rejection)
    if correction.rejections:
        alone = Correction(rejections=correction.rejections)
        logged |= masked_fractions(batch, outcome(batch.rows, alone).kept)
    logged |= off_policy(batch)
    return {f"rollout_corr/{name}": value for name, value in logged.items()}


def ratio_metrics(batch: Batch, correction: Correction, *, normalize_valid: bool) -> Metrics:
    """Return the metrics of 0.6.1 to 0.7.0, under their full keys."""
    logged: Metrics = {}
    if correction.weighting is not None:
        logged |= weight_metrics(batch, correction.weighting, "rollout_is", of="raw")
        if correction.batch_normalize:
            factor = normaliser(batch, correction, valid_rows=normalize_valid)
            logged["rollout_is_batch_norm_factor"] = factor
    for one in correction.rejections:
        bounds = Weighting(one.statistic, one.upper, one.lower)  # type: ignore[arg-type]
        logged |= weight_metrics(batch, bounds, "rollout_rs", of="raw")
        # A row without a token has a product of 1; it is rejected if 1 is out of bounds.
        one_is_kept = one.of_tokens or (one.lower or 0.0) <= 1.0 <= one.upper
        kept = outcome(batch.rows, Correction(rejections=(one,))).kept
        logged |= masked_fractions(batch, kept, padding_rejected=float(not one_is_kept))
    logged |= _veto_metrics(batch, correction)
    logged |= off_policy(batch)
    return {f"rollout_corr/{name}": value for name, value in logged.items()}


def _veto_metrics(batch: Batch, correction: Correction) -> Metrics:
    vetoed, below = 0.0, 0.0
    if correction.veto is not None:
        vetoed = float(vetoed_rows(batch.rows, correction.veto).sum() / batch.all_rows)
        below = batch.token_mean(below_veto(correction.veto))
    return {
        "rollout_is_veto_fraction": vetoed,
        "rollout_is_catastrophic_token_fraction": below,
    }


def weights_metrics(batch: Batch, correction: Correction, *, percentiles: bool) -> Metrics:
    """Return the metrics of 0.6.0, under their full keys; empty without a threshold."""
    weighting = correction.weighting
    if weighting is None:
        return {}
    logged = {
        **_veto_metrics(batch, correction),
        **weight_metrics(batch, weighting, "rollout_is", of="raw", geometric_fractions="tokens"),
    }
    if percentiles:
        logged |= _percentiles(batch, weighting)
    if weighting.outside != "truncate":
        logged |= masked_by_weights(batch, weighting)
    for name, value in off_policy(batch).items():
        if not name.startswith("chi2"):  # 0.6.0 has none
            logged[f"mismatch_{name}"] = value
    return {f"mismatch/{name}": value for name, value in logged.items()}


def _percentiles(batch: Batch, weighting: Weighting) -> Metrics:
    """Return percentiles of raw token weights; interpolated linearly, as by torch.quantile."""
    rows = batch.rows
    if weighting.level == "token":
        ordered = Ordered.of(rows.sketch(RATIO))
    else:
        raw = ratio(rows, weighting.level)
        order = np.argsort(raw)
        ordered = Ordered(raw[order], np.cumsum(rows.lengths[order]))
    if np.isnan(rows.sum(raw_weights(rows, weighting)).sum()):
        return {f"rollout_is_p{percent}": np.nan for percent in PERCENTILES}
    return {f"rollout_is_p{percent}": ordered.quantile(percent / 100.0) for percent in PERCENTILES}


def masked_by_weights(batch: Batch, weighting: Weighting) -> Metrics:
    """Count masked rows; one without a token has ratio 1, and counts if that is out of bounds."""
    rows, lower, upper = batch.rows, weighting.lower_or_reciprocal, weighting.upper
    outside_padding = 0.0 if lower <= 1.0 <= upper else 1.0
    if weighting.level == "token":
        kept = rows.sum(RATIO.within(lower, upper))
        touched = batch.padded((kept < rows.lengths).astype(np.float64))
    else:
        keep = within(ratio(rows, weighting.level), lower, upper)
        kept = np.where(keep, rows.lengths, 0)
        touched = batch.padded((~keep).astype(np.float64), outside_padding)
    return {
        "rollout_is_masked_fraction": batch.token_share(float((rows.lengths - kept).sum())),
        "rollout_is_seq_masked_fraction": float(touched.mean()),
    }
