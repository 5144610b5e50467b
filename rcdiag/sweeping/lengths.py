"""Quartiles of the sequence length, and what is kept in each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.sweeping.keyed import Array
from rcdiag.sweeping.state import SweepState
from rcdiag.sweeping.sums import LENGTHS


def cuts(sequences: Array) -> NDArray[np.int64]:
    """The lengths up to which a quarter, half and three quarters of the sequences go.

    `sequences` are counts by the bins of LENGTHS, so cuts are among these.
    """
    shares = np.cumsum(sequences) / sequences.sum()
    at = np.searchsorted(shares, (0.25, 0.5, 0.75))
    return LENGTHS[np.minimum(at, len(LENGTHS) - 1)]


def length_quartiles(state: SweepState) -> list[float]:
    """The three cuts, in tokens."""
    return [float(cut) for cut in cuts(state.lengths[0])]


def by_quartile(state: SweepState, kept: Array) -> Array:
    """Share of tokens kept, [4, settings]; NaN where a quartile has no sequence.

    `kept` are tokens by the bins of LENGTHS, [LENGTHS + 1, settings].
    """
    sequences, tokens = state.lengths
    quartile = np.searchsorted(cuts(sequences), np.append(LENGTHS, LENGTHS[-1] + 1))
    of_all = np.bincount(quartile, tokens, 4)[:, None]
    sums = np.stack([kept[quartile == each].sum(axis=0) for each in range(4)])
    return sums / of_all
