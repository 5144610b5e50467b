"""Whether the trainer gives tokens less than a uniform guess over the vocabulary would."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Flags, PairTokens
from rcdiag.diagnosis.thresholds import BY_CHANCE


def below_a_uniform_guess(tokens: PairTokens) -> Flags:
    """Flag rows [rows] that the trainer scores significantly worse than a uniform guess would.

    If p sampled the row, E[uniform / p] <= 1, so that by Markov's inequality the log-likelihood
    under p is c nats below that of a uniform guess with probability at most exp(-c). A row is
    flagged where this bound, times the number of rows, is below .01. Stale or quantised weights
    never come near this; other tokens or another context do. The true vocabulary has at least the
    ids of the table, so that its uniform guess is no better than the one over these.
    """
    uniform = -float(np.log(float(tokens.token_id.max()) + 1.0))
    deficits = tokens.per_row * uniform - tokens.row_sums(tokens.trainer)
    return np.asarray(deficits > np.log(tokens.rows / BY_CHANCE), np.bool_)
