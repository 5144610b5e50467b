"""slime's MIS helper. Metrics are means over sequences of masked means (no per-token loss).

Sources: slime commit 624b824a8 (2026-08-21), `examples/train_infer_mismatch_helper/mis.py` and
`mis.yaml`. slime computes them by micro-batch and rank; here the batch is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    applied_weights,
    log_ratio,
    raw_weights,
    veto_quantity,
    vetoed_rows,
)
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import SAFETY_BOUND
from rcdiag.corrections.quantities import (
    Beyond,
    LogRatio,
    Quantity,
    Ratio,
    SquaredRatio,
    UnclampedK3,
)
from rcdiag.corrections.reduced import Column
from rcdiag.corrections.trainer_means import EPSILON, Batch
from rcdiag.trainers.trainer import Config, Metrics, Refused, choice

LEVELS = ("token", "sequence", "geometric")


def read(config: Config) -> Correction:
    """Read the canonical correction. Without `use_tis` nothing happens, rejection included."""
    if not config["use_tis"]:
        return Correction(weights_applied=False)
    level = choice(config, "tis_level", LEVELS)
    mode = choice(config, "tis_mode", ("truncate", "clip", "mask"))
    if config["tis_batch_normalize"] and level == "geometric":
        raise Refused(
            "tis_batch_normalize: slime stops with geometric weights (unsupported tis_level)",
            "turn it off, or take another level",
        )
    upper = _number(config, "tis_upper_bound")
    lower = config["tis_lower_bound"]
    lower = 1.0 / upper if lower is None else _number(config, "tis_lower_bound")
    if mode != "truncate":
        _ordered("tis", lower, upper)
    rejections = [Rejection(level, upper, lower)] if mode == "mask" else []
    veto = None
    if config["use_rs"]:
        rs_level = choice(config, "rs_level", LEVELS)
        low, high = config["rs_lower_bound"], config["rs_upper_bound"]
        low = lower if low is None else _number(config, "rs_lower_bound")
        high = upper if high is None else _number(config, "rs_upper_bound")
        _ordered("rs", low, high)
        rejections.append(Rejection(rs_level, high, low))
        if config["rs_veto_threshold"] is not None:
            veto = _number(config, "rs_veto_threshold")
    return Correction(
        weighting=Weighting(level, upper, lower, mode),
        rejections=tuple(rejections),
        veto=veto,
        batch_normalize=bool(config["tis_batch_normalize"]),
    )


def _ordered(which: str, lower: float, upper: float) -> None:
    """Refuse bounds in the wrong order, as slime's helper does wherever it clips or rejects."""
    if not lower < upper:
        raise Refused(
            f"{which}_lower_bound: {lower:g} is not below the upper bound {upper:g}",
            "rs bounds that are null are those of tis",
        )


def _number(config: Config, name: str) -> float:
    """Return a setting that must be a number above 0; YAML 1.1 reads 1e-4 as text."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise Refused(
            f"{name}: wanted a number above 0, got {value!r}",
            "YAML takes 1e-4 for text; write 1.0e-4",
        )
    return float(value)


def _rejection(correction: Correction) -> Rejection | None:
    """Read the rejection of `use_rs`; `mask` mode puts one of its own before it."""
    assert correction.weighting is not None
    own = correction.weighting.outside == "mask"
    rejections = correction.rejections[1:] if own else correction.rejections
    return rejections[0] if rejections else None


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    needed: list[Quantity] = [LogRatio(), UnclampedK3(), SquaredRatio()]
    if correction.weighting is None:
        return needed
    weighting = correction.weighting
    sides: list[tuple[str, float, float]] = [
        (weighting.level, weighting.lower_or_reciprocal, weighting.upper)
    ]
    if (rejection := _rejection(correction)) is not None:
        sides.append((rejection.statistic, rejection.lower or 0.0, rejection.upper))
    for level, lower, upper in sides:
        if level == "token":
            needed += [Ratio(), Beyond("ratio", upper), Beyond("ratio", lower, below=True)]
    if correction.veto is not None:
        needed.append(veto_quantity(correction.veto))
    return needed


def mean_of_rows(batch: Batch, values: NDArray) -> float:
    """Return the mean of `values` [rows] over all rows; one without a token adds 0."""
    return float(values.sum() / batch.all_rows)


Mean = Callable[[Batch, NDArray], float]


def metrics(batch: Batch, correction: Correction, mean: Mean = mean_of_rows) -> Metrics:
    """Return all logged numbers under their keys with prefix.

    `mean` reduces means or values of rows: over rows, or over tokens for a per-token loss.
    """
    logged = _off_policy(batch, mean)
    if correction.weighting is not None:
        logged |= _weights(batch, correction, mean)
        logged |= _rejected(batch, correction, mean)
        logged |= _final(batch, correction, mean)
    return {f"mis_{name}": value for name, value in logged.items()}


def _row_means(batch: Batch, column: Column) -> NDArray[np.float64]:
    return column.sum / batch.rows.lengths


def _off_policy(batch: Batch, mean: Mean) -> Metrics:
    rows = batch.rows
    training, rollout = rows.target / rows.lengths, rows.behavior / rows.lengths
    difference = rollout - training
    sums = np.clip(rows.columns[LogRatio()].sum, -SAFETY_BOUND, SAFETY_BOUND)
    of_rows = {
        "training_log_ppl": -training,
        "training_ppl": np.exp(-training),
        "rollout_log_ppl": -rollout,
        "rollout_ppl": np.exp(-rollout),
        "kl": -_row_means(batch, rows.columns[LogRatio()]),
        "k3_kl": _row_means(batch, rows.columns[UnclampedK3()]),
        "log_ppl_diff": difference,
        "log_ppl_abs_diff": np.abs(difference),
        "ppl_ratio": np.exp(difference),
        "chi2_token": _row_means(batch, rows.columns[SquaredRatio()]) - 1.0,
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
    """Return means over sequences of the shares below and above the bounds."""
    rows = batch.rows
    if level == "token":
        below = _row_means(batch, rows.columns[Beyond("ratio", lower, below=True)])
        above = _row_means(batch, rows.columns[Beyond("ratio", upper)])
    else:
        clamped = np.clip(log_ratio(rows, level), -SAFETY_BOUND, SAFETY_BOUND)
        below = (np.exp(clamped) < lower).astype(np.float64)
        above = (np.exp(clamped) > upper).astype(np.float64)
    return mean(batch, below), mean(batch, above)


def _rejected(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    rejection = _rejection(correction)
    if rejection is None:
        return {}
    low, high = _beyond(batch, rejection.statistic, rejection.lower or 0.0, rejection.upper, mean)
    logged = {"rs_mask_fraction_low": low, "rs_mask_fraction_high": high}
    if correction.veto is not None:
        below = batch.rows.columns[veto_quantity(correction.veto)]
        logged["rs_catastrophic_token_fraction"] = mean(batch, _row_means(batch, below))
        vetoed = vetoed_rows(batch.rows, correction.veto)
        logged["rs_catastrophic_seq_fraction"] = mean(batch, vetoed)
    return logged


def normaliser(batch: Batch, correction: Correction) -> float:
    """Return the divisor of weights: their mean over tokens or sequences; 1 if tiny."""
    weighting = correction.weighting
    if weighting is None or not correction.batch_normalize:
        return 1.0
    applied = applied_weights(batch.rows, weighting)
    if weighting.level == "token":
        mean = float(applied.sum.sum() / batch.rows.tokens)
    else:
        mean = mean_of_rows(batch, _row_means(batch, applied))
    return mean if mean > EPSILON else 1.0


def _final(batch: Batch, correction: Correction, mean: Mean) -> Metrics:
    """Return statistics of weights after normalisation before rejection, whatever their keys."""
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
        "is_ratio_min_final": mean(batch, applied.min / factor),
        "is_ratio_max_final": mean(batch, applied.max / factor),
    }


def ignored(config: Config) -> list[str]:
    """List settings that slime takes and does nothing with."""
    if config["use_rs"] and not config["use_tis"]:
        return ["use_rs has no effect without use_tis: slime returns before it rejects anything"]
    sentences = []
    if config["use_tis"] and not config["use_rs"]:
        changed = [name for name in _NEED_RS if config[name] != SETTINGS[name]]
        sentences += [f"{name} has no effect without use_rs" for name in changed]
        lower = config["tis_lower_bound"]
        if config["tis_mode"] == "truncate" and lower != SETTINGS["tis_lower_bound"]:
            sentences.append("tis_lower_bound has no effect in truncate mode without use_rs")
    return sentences


_NEED_RS = ("rs_level", "rs_lower_bound", "rs_upper_bound", "rs_veto_threshold")
SETTINGS: dict[str, Any] = {
    "use_tis": True,
    "use_rs": True,
    "tis_level": "token",
    "rs_level": "token",
    "tis_mode": "truncate",
    "tis_lower_bound": 0.5,
    "tis_upper_bound": 2.0,
    "rs_lower_bound": None,
    "rs_upper_bound": None,
    "rs_veto_threshold": 1e-4,
    "tis_batch_normalize": True,
}
