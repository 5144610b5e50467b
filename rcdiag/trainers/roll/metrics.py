"""ROLL's metrics: ratios and differences at four levels, and the effect of weights and filters.

Two kinds of numbers are counted over the whole padded grid and divided by the response tokens. The
grid here is that of the table as one batch: rows x longest response. Positions outside of the mask
have log-ratio 0. Sources: ROLL commit 8eb27cc2, roll/utils/train_infer_corrections.py and
roll/utils/functionals.py (`agg_loss`, `masked_mean`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    outcome,
    ratio,
    raw_weights,
    statistic_of_rows,
    token_ratio,
)
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import RATIO, named, stays, within
from rcdiag.corrections.sequences import EPSILON
from rcdiag.corrections.trainer_means import Batch, Metrics

Array = NDArray[np.float64]


# Statistic of a filter on the probability difference -> its level in the key.
LEVEL_OF_DIFFERENCE = {
    "token_prob_change": "token",
    "segment_prob_change": "segment",
    "seq_mean_prob_change": "geometric",
    "seq_sum_prob_change": "sequence",
}
FILTERS = "filters"  # a list of filters is logged even if none of them is enabled


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics, under ROLL's names."""
    logged = _levels(batch)
    weighting = correction.weighting
    if weighting is not None and np.isfinite(weighting.upper):
        # Grid positions with a weight above the bound; those outside of the mask have ratio 1.
        upper = weighting.upper
        if weighting.by_token:
            count = float(batch.rows.sum(token_ratio(weighting) > upper).sum())
            count += _elsewhere(batch) * (upper < 1.0)
        else:
            beyond = batch.rows.max(raw_weights(batch.rows, weighting)) > upper
            count = _whole_rows(batch, beyond, upper < 1.0)
        logged["is_weight_clipfrac@sum"] = _over_tokens(batch, count)
    for test in correction.rejections:
        name = f"{test.statistic}_ratio"
        if test.statistic in LEVEL_OF_DIFFERENCE:
            name = f"{LEVEL_OF_DIFFERENCE[test.statistic]}_diff"
        logged[f"train_infer_{name}_mask_mean@sum"] = _passed(batch, test)
    if correction.logging == FILTERS:
        kept = outcome(batch.rows, correction).kept_tokens
        logged["train_infer_final_mask_mean"] = batch.token_share(kept)
    return {f"actor/{name}": value for name, value in logged.items()}


def _levels(batch: Batch) -> Metrics:
    rows = batch.rows
    changes = rows.sum(named("prob_change"))
    of_rows = {
        "ratio_token": rows.sum(RATIO),
        "ratio_geometric": ratio(rows, "geometric") * rows.lengths,
        "ratio_sequence": ratio(rows, "sequence") * rows.lengths,
        "ratio_segment": rows.sum(named("segment")),
        "diff_token": changes,
        "diff_geometric": changes / (rows.lengths + rows.epsilon) * rows.lengths,
        "diff_sequence": changes * rows.lengths,
        "diff_segment": rows.sum(named("segment_prob_change")),
    }
    divisors = rows.lengths + rows.epsilon
    return {
        f"train_infer_{name}_mean@sum": float(
            (sums / divisors).sum() / (max(len(rows), 1) + EPSILON)
        )
        for name, sums in of_rows.items()
    }


def _passed(batch: Batch, test: Rejection) -> float:
    """Return the number of grid positions that pass a filter, per response token."""
    lower = -np.inf if test.lower is None else test.lower
    nothing = 0.0 if test.statistic in LEVEL_OF_DIFFERENCE else 1.0  # where the mask is 0
    passes = bool(lower <= nothing <= test.upper)
    if test.of_tokens:
        count = float(batch.rows.sum(stays((test,))).sum())
        return _over_tokens(batch, count + _elsewhere(batch) * passes)
    kept = within(statistic_of_rows(batch.rows, test), lower, test.upper)
    return _over_tokens(batch, _whole_rows(batch, kept, passes))


def _whole_rows(batch: Batch, counted: NDArray[np.bool_], of_empty: bool) -> float:
    """Return the grid positions of counted rows; `of_empty`: whether empty rows are counted."""
    return batch.rows.width * float(counted.sum() + batch.rows.empty * of_empty)


def _elsewhere(batch: Batch) -> float:
    """Return the number of grid positions that are not response tokens."""
    return float(batch.all_rows * batch.rows.width - batch.rows.tokens)


def _over_tokens(batch: Batch, count: float) -> float:
    return count / max(batch.rows.tokens, 1)
