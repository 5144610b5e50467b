"""What a correction does to every single token: its weight, and whether it stays in the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.config import Correction
from rcdiag.corrections.levels import bounded, bounded_quantity, kept_quantity, kept_rows, ratio
from rcdiag.corrections.outcome import vetoed_rows
from rcdiag.corrections.quantities import Tokens
from rcdiag.corrections.rows import Rows

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenEffects:
    """Of every unmasked token of a batch."""

    kept: NDArray[np.bool_]  # [tokens] in the loss mask
    # [tokens] before batch normalisation; rejected tokens keep theirs, as in trainers. None
    # without weights, or where they are logged only.
    weights: Array | None


def token_effects(correction: Correction, tokens: Tokens, rows: Rows) -> TokenEffects:
    """`rows` holds the quantities of `outcome.quantities_of`, of the same tokens."""
    vetoed = vetoed_rows(rows, correction.veto)
    stays = kept_rows(rows, correction.rejections)
    if not correction.veto_on_weights:
        stays &= ~vetoed
    kept = np.repeat(stays, rows.lengths)
    if (by_token := kept_quantity(correction.rejections)) is not None:
        kept &= by_token.of(tokens) > 0
    weights = _weights(correction, tokens, rows)
    if weights is not None and correction.veto_on_weights:
        weights = weights * np.repeat(~vetoed, rows.lengths)
    return TokenEffects(kept, weights)


def _weights(correction: Correction, tokens: Tokens, rows: Rows) -> Array | None:
    weighting = correction.loss_weighting
    if weighting is None:
        return None
    if weighting.level == "token":
        return bounded_quantity(weighting).of(tokens).astype(np.float64, copy=False)
    return np.repeat(bounded(ratio(rows, weighting.level), weighting), rows.lengths)
