"""The size of a mismatch, by the guides of the numbers that `score` shows."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.guides import level
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.ratios import TOKEN_SUMS, TokenValues
from rcdiag.statistics.totals import Totals

# The means over tokens that have a guide.
SIZES = (
    "k3_kl",
    "k2_kl",
    "k1_kl",
    "exp_abs_log_ratio_mean",
    "ratio_deviation_mean",
    "prob_diff_mean",
)


def beyond_guides(tokens: PairTokens) -> list[str]:
    """Return the numbers of a mismatch's size that are beyond their guide on a pair's tokens.

    They are computed as in `score`, so that a verdict is never `healthy` where score has a warning
    or an error for the size of the mismatch.
    """
    if not len(tokens):
        return []
    values = TokenValues.of(tokens.sampler, tokens.trainer, tokens.log_ratio)
    count = np.array([float(len(tokens))])
    rows = np.array([float(np.count_nonzero(tokens.per_row))])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {name: np.array([each.of(values).sum()]) for name, each in TOKEN_SUMS.items()}
    totals = Totals(rows, count, sums, {}, {}, {})
    beyond = []
    for name in SIZES:
        metric = METRICS[name]
        assert metric.guide is not None
        assert metric.from_totals is not None
        if level(metric.guide, float(metric.from_totals(totals)[0])) in ("warning", "error"):
            beyond.append(name)
    return beyond
