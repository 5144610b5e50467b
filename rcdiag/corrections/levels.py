"""Weights and statistics of whole sequences, from what the rows keep of their tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.config import Level, Rejection, Weighting
from rcdiag.corrections.quantities import (
    SAFETY_BOUND,
    K,
    Kept,
    LogRatio,
    Quantity,
    Ratio,
    within,
)
from rcdiag.corrections.rows import Column, Rows

Array = NDArray[np.float64]


def log_ratio(rows: Rows, level: Level) -> Array:
    """Summed (`sequence`) or mean (`geometric`) log-ratio of each row, unclamped, nats."""
    total = rows.columns[LogRatio()].sum
    return total if level == "sequence" else total / (rows.lengths + rows.epsilon)


def ratio(rows: Rows, level: Level) -> Array:
    """Exp of the row's log-ratio, clamped to +-20."""
    values = np.clip(log_ratio(rows, level), -SAFETY_BOUND, SAFETY_BOUND).astype(rows.dtype)
    return np.exp(values).astype(np.float64)


def raw_weights(rows: Rows, weighting: Weighting) -> Column:
    """The ratio before anything happens to it outside the bounds."""
    if weighting.level == "token":
        return rows.columns[Ratio()]
    return Column.of_sequences(ratio(rows, weighting.level), rows.lengths)


def bounded_quantity(weighting: Weighting) -> Ratio:
    """What becomes of the ratio at the bounds."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    return {
        "truncate": Ratio(upper=upper),
        "clip": Ratio(lower, upper),
        "zero": Ratio(lower, upper, zero=True, nan_stays=weighting.nan_stays),
        "mask": Ratio(),
    }[weighting.outside]


def bounded(values: Array, weighting: Weighting) -> Array:
    """The same for given ratios."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.outside == "truncate":
        return np.minimum(values, upper)
    if weighting.outside == "clip":
        return np.clip(values, lower, upper)
    if weighting.outside == "zero":
        zeroed = np.where(within(values, lower, upper), values, 0.0)
        return np.where(np.isnan(values), values, zeroed) if weighting.nan_stays else zeroed
    return values


def applied_weights(rows: Rows, weighting: Weighting) -> Column:
    """Weights as they go into the loss, before batch normalisation."""
    if weighting.level == "token":
        return rows.columns[bounded_quantity(weighting)]
    raw = ratio(rows, weighting.level)
    return Column.of_sequences(bounded(raw, weighting), rows.lengths)


def clipped_weights(rows: Rows, weighting: Weighting) -> Column:
    """The ratio clipped to [lower, upper], for the statistics of older generations."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.level == "token":
        return rows.columns[Ratio(lower, upper)]
    return Column.of_sequences(np.clip(ratio(rows, weighting.level), lower, upper), rows.lengths)


def statistic_of_rows(rows: Rows, name: str) -> Array:
    """`sequence`, `geometric` (ratios) or `seq_{sum,mean,max}_{k}` (nats) of each row."""
    if name in ("sequence", "geometric"):
        return ratio(rows, name)  # type: ignore[arg-type]
    _, aggregation, k = name.split("_")
    column = rows.columns[K(k)]
    if aggregation == "sum":
        return column.sum
    return column.max if aggregation == "max" else column.sum / (rows.lengths + rows.epsilon)


def token_bounds(rejection: Rejection) -> tuple[str, float, float]:
    """Statistic and bounds of a rejection by token."""
    name = "ratio" if rejection.statistic == "token" else rejection.statistic.removeprefix("token_")
    lower = -np.inf if rejection.lower is None else rejection.lower
    return name, lower, rejection.upper


def kept_quantity(
    rejections: tuple[Rejection, ...], weights: Quantity | None = None
) -> Kept | None:
    """`weights` (or 1) of the tokens that all rejections by token keep; None if there are none."""
    bounds = tuple(token_bounds(each) for each in rejections if each.of_tokens)
    return Kept(bounds, weights) if bounds else None


def kept_rows(rows: Rows, rejections: tuple[Rejection, ...]) -> NDArray[np.bool_]:
    """Rows that all rejections by sequence keep."""
    keep = np.ones(len(rows), np.bool_)
    for each in rejections:
        if not each.of_tokens:
            lower = -np.inf if each.lower is None else each.lower
            keep &= within(statistic_of_rows(rows, each.statistic), lower, each.upper)
    return keep
