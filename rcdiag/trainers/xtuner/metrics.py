"""XTuner's metrics of the two policies, and of weights if there are any.

XTuner computes them per pack of sequences, and averages (or takes extremes) over packs and ranks;
here the batch is one pack. Perplexities are computed over the packed row, without separating its
sequences. Rows without a token, such as padding, count in metrics of weights, as in XTuner.
Source: InternLM/xtuner commit b934f462 (2026-08-21), xtuner/v1/rl/rollout_is.py
(`compute_is_metrics`, `compute_mismatch_metrics`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import raw_weights
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.quantities import LOG_RATIO, bare_log_ratio, unclamped_k3
from rcdiag.corrections.trainer_means import (
    Batch,
    Metrics,
    once_a_batch,
    perplexities,
    row_statistics,
    share,
)
from rcdiag.trainers.verl.metrics import masked_by_weights, weight_metrics
from rcdiag.trainers.xtuner.correction import HIGHEST, LOWEST


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics, over the mask before rejection."""
    of_policies = {f"mismatch/mismatch_{name}": one for name, one in policies(batch).items()}
    weighting = correction.weighting
    if weighting is None:
        return of_policies
    logged = weight_metrics(batch, weighting, "rollout_is", of="raw", geometric_fractions="tokens")
    means = batch.row_means(raw_weights(batch.rows, weighting))
    of_rows = {
        **row_statistics(means, 1.0),
        "seq_fraction_high": share(means > weighting.upper),
        "seq_fraction_low": share(means < weighting.lower_or_reciprocal),
    }
    logged |= {f"rollout_is_{name}": value for name, value in of_rows.items()}
    logged |= _of_veto(batch, correction)
    for one in correction.rejections:
        if one.statistic == weighting.level:
            logged |= masked_by_weights(batch, Weighting(weighting.level, one.upper, one.lower))
    return of_policies | {f"rollout_is/mismatch/{name}": value for name, value in logged.items()}


@once_a_batch
def policies(batch: Batch) -> Metrics:
    """Return KL, and perplexities over all tokens together."""
    training, rollout = (
        batch.token_share(float(sums.sum())) for sums in (batch.rows.target, batch.rows.behavior)
    )
    of_pack = perplexities(np.array(training), np.array(rollout))
    return {
        **{name: float(value) for name, value in of_pack.items()},
        "kl": -batch.token_mean(LOG_RATIO),
        "k3_kl": batch.token_mean(unclamped_k3),
        "log_ppl_diff_max": float(of_pack["log_ppl_diff"]),
        "log_ppl_diff_min": float(of_pack["log_ppl_diff"]),
        "logprob_abs_diff": batch.token_mean(abs(bare_log_ratio)),
    }


def _of_veto(batch: Batch, correction: Correction) -> Metrics:
    """Return the share of rows (with a token) that the veto drops, and of tokens that cause it."""
    tests: dict[str, Rejection] = {one.statistic: one for one in correction.rejections}
    vetoed, tokens = 0.0, 0.0
    if HIGHEST in tests:
        lower, upper = tests[LOWEST].lower, tests[HIGHEST].upper
        assert lower is not None  # the veto has both
        outside = bare_log_ratio.outside(lower, upper)
        dropped = batch.rows.sum(outside) > 0
        vetoed = float(dropped.sum()) / (len(dropped) + batch.rows.epsilon)
        tokens = batch.token_mean(outside)
    return {
        "rollout_is_veto_fraction": vetoed,
        "rollout_is_catastrophic_token_fraction": tokens,
    }
