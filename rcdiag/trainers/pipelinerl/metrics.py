"""PipelineRL logs numbers of the ratio of the trained policy to the sampler: `rl/`.

A number of tokens is averaged in each sequence, then over all samples of a step; a NaN adds 0. Here
they are those of the first update, in which the trained policy is the old one. Sources:
ServiceNow/PipelineRL commit 58d39345 (2026-06-19), pipelinerl/finetune/rl/__init__.py (`rl_step`),
pipelinerl/finetune/rl/utils.py (`sum_sum`, `aggregate_rl_stats`) and pipelinerl/finetune_loop.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, Quantity, quantity
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.pipelinerl.correction import bounds_of


@quantity
def known(tokens: Tokens, values: Array) -> Array:
    """Return values of tokens, 0 where they are NaN."""
    return np.where(np.isnan(values), values.dtype.type(0.0), values)


@quantity
def k3(tokens: Tokens) -> Array:
    """Return ratio - 1 - log_ratio of each token, nats."""
    return tokens.k3


@quantity
def distance(tokens: Tokens) -> Array:
    """Return |log_ratio| of each token, nats."""
    return np.abs(tokens.log_ratio)


@quantity
def beyond(tokens: Tokens, lower: float, upper: float) -> NDArray[np.bool_]:
    """Return 1 where the bounds change the ratio."""
    with np.errstate(invalid="ignore"):  # NaN differs from itself, and PPO's flag is then 1
        return (tokens.ratio > upper) | (tokens.ratio < lower)


@quantity
def unknown(tokens: Tokens) -> NDArray[np.bool_]:
    """Return 1 where the ratio is NaN."""
    return np.isnan(tokens.ratio)


@quantity
def log_prob(tokens: Tokens, side: str) -> Array:
    """Return the log-prob of each token under one policy, nats."""
    return tokens.behavior if side == "behavior" else tokens.target


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the logged numbers of the ratio, which for reinforce is the cut one."""
    rows, (lower, upper) = batch.rows, bounds_of(correction)
    flags = rows.sum(beyond(lower, upper))
    used = RATIO
    if correction.weighting is not None:
        used = RATIO.clip(0.0, upper)
    else:  # a NaN is not equal to its clipped self
        flags = flags + rows.sum(unknown)
    total, squares = (
        float(sums.sum()) for sums in (rows.sum(known(used)), rows.squares(known(used)))
    )

    def mean(values: Quantity) -> float:
        return _mean_of_rows(batch, rows.sum(known(values)))

    return {
        "rl/kl_new_old": mean(k3),
        "rl/mean_abs_log_ratio_new_old": mean(distance),
        "rl/ratio_new_old": mean(used),
        "rl/ratio_new_old_sum": total,
        "rl/ratio_new_old_squared_sum": squares,
        "rl/clamp_log_ratio_new_old_indicator": _mean_of_rows(batch, flags),
        "rl/old_logprobs": mean(log_prob("behavior")),
        "rl/new_logprobs": mean(log_prob("target")),
        "rl/num_output_tokens_sum": float(rows.tokens),
        "rl/ess": total**2 / squares / rows.tokens if squares else np.nan,
    }


def _mean_of_rows(batch: Batch, sums: Array) -> float:
    """Return the mean over all rows of the means of their tokens; one without a token adds 0."""
    return float((sums / batch.rows.lengths).sum() / batch.all_rows)
