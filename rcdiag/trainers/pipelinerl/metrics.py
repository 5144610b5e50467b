"""PipelineRL's metrics of the ratio of trained policy to sampler: `rl/`.

Token values are averaged within each sequence, then over all samples of a step; a NaN counts as 0.
Here they are those of the first update, where the trained policy is the old one. Sources:
ServiceNow/PipelineRL commit 58d39345 (2026-06-19), pipelinerl/finetune/rl/__init__.py (`rl_step`),
pipelinerl/finetune/rl/utils.py (`sum_sum`, `aggregate_rl_stats`) and pipelinerl/finetune_loop.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Array
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import (
    LOG_RATIO,
    RATIO,
    Quantity,
    known,
    log_prob,
    named,
    unknown,
)
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.pipelinerl.correction import bounds_of


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the metrics of the ratio; for reinforce, of the truncated ratio."""
    rows, (lower, upper) = batch.rows, bounds_of(correction)
    flags = rows.sum(RATIO.outside(lower, upper))
    used = RATIO
    if correction.weighting is not None:
        used = RATIO.clip(0.0, upper)
    else:  # NaN is not equal to its clipped value, so it counts as clipped
        flags = flags + rows.sum(unknown(RATIO))
    total, squares = (
        float(sums.sum()) for sums in (rows.sum(known(used)), rows.squares(known(used)))
    )

    def mean(values: Quantity) -> float:
        return _mean_of_rows(batch, rows.sum(known(values)))

    return {
        "rl/kl_new_old": mean(named("k3")),
        "rl/mean_abs_log_ratio_new_old": mean(abs(LOG_RATIO)),
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
    """Return the mean over all rows of their token means; a row without a token counts as 0."""
    return float((sums / batch.rows.lengths).sum() / batch.all_rows)
