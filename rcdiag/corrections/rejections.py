"""Rejections are held against tokens: which of them stay in the loss mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Rejection
from rcdiag.corrections.statistics import row_statistic, statistic, token_statistic
from rcdiag.table.segments import segment_max


def tokens_kept(tokens: Tokens, rejections: Sequence[Rejection]) -> NDArray[np.bool_]:
    """Tell which tokens stay under rejections by token, segment or sequence, [tokens]."""
    keep = np.ones(len(tokens.raw_log_ratio), np.bool_)
    for rejection in rejections:
        lower = -np.inf if rejection.lower is None else rejection.lower
        keep &= within(_tested(tokens, rejection), lower, rejection.upper)
    return keep


def _tested(tokens: Tokens, rejection: Rejection) -> Array:
    """Return the statistic of a rejection at each token, [tokens]."""
    if rejection.of_tokens:
        return statistic(tokens, token_statistic(rejection.statistic))
    keep, counts = tokens_kept(tokens, rejection.over), tokens.lengths.astype(np.float64)
    if rejection.over:
        counts = np.maximum(tokens.row_sum(keep.astype(np.float64)), 1.0)
    if rejection.of_ratio:
        sums = tokens.row_sum(np.where(keep, tokens.log_ratio, 0.0))
        logs = sums if rejection.statistic == "sequence" else sums / counts
        return tokens.on_tokens(tokens.guard.exp(logs))
    place, name = row_statistic(rejection.statistic)
    values = statistic(tokens, name)
    if place in ("max", "min"):
        sign = 1.0 if place == "max" else -1.0
        turned = np.where(keep, sign * values, -np.inf).astype(np.float64, copy=False)
        return tokens.on_tokens(sign * segment_max(turned, tokens.lengths))
    sums = tokens.row_sum(np.where(keep, values, 0.0))
    return tokens.on_tokens(sums if place == "sum" else sums / counts)


def within(values: Array, lower: float | Array, upper: float | Array) -> NDArray[np.bool_]:
    """Tell where values lie within bounds, both included; NaN is outside."""
    with np.errstate(invalid="ignore"):
        return (values >= lower) & (values <= upper)
