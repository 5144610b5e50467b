"""Counts of tokens in declared bins: states that add up exactly, whatever the order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.pair import PolicyPair

# |log_ratio| from float32 rounding to a ratio of e^100, eight bins a decade, either sign, and one
# bin around 0 between them; the outermost bins take all that lies beyond.
_DECADES = np.logspace(-7, 2, 9 * 8 + 1)
LOG_RATIO_EDGES = np.concatenate([-_DECADES[::-1], _DECADES])

PROBABILITY_EDGES = np.linspace(0.0, 1.0, 101)


def log_ratio_counts(pair: PolicyPair) -> NDArray[np.int64]:
    """Tokens in each bin of LOG_RATIO_EDGES; NaN is in none, +-inf in the outermost."""
    inside = np.clip(pair.log_ratio, LOG_RATIO_EDGES[0], LOG_RATIO_EDGES[-1])
    return np.histogram(inside, LOG_RATIO_EDGES)[0]


def probability_counts(pair: PolicyPair) -> NDArray[np.int64]:
    """Tokens in each cell of PROBABILITY_EDGES x PROBABILITY_EDGES, [behavior, target]."""
    cells = len(PROBABILITY_EDGES) - 1
    known = ~(np.isnan(pair.behavior_log_probs) | np.isnan(pair.target_log_probs))
    rows, columns = (
        np.minimum((np.exp(np.minimum(log_probs[known], 0.0)) * cells).astype(np.int64), cells - 1)
        for log_probs in (pair.behavior_log_probs, pair.target_log_probs)
    )
    return np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)
