"""What a correction leaves of a batch: kept tokens and sequences, and their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.config import Correction
from rcdiag.corrections.levels import (
    applied_weights,
    bounded_quantity,
    kept_quantity,
    kept_rows,
)
from rcdiag.corrections.quantities import Beyond, Quantity
from rcdiag.corrections.rows import Column, Rows

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of every row: how many tokens stay in the loss mask, and the weights of those that do."""

    kept: Array  # [sequences] tokens
    vetoed: NDArray[np.bool_]  # [sequences]
    weights: Column | None  # of all tokens, before batch normalisation; 0 where zeroed
    # The same in the loss: 0 at tokens that are rejected; None where weights are logged only.
    kept_weights: Column | None

    @property
    def kept_tokens(self) -> int:
        return int(self.kept.sum())

    @property
    def kept_sequences(self) -> int:
        return int((self.kept > 0).sum())


def veto_quantity(veto: float) -> Beyond:
    """1 at tokens whose unclamped ratio is below the veto; its log is held in float32 (verl)."""
    return Beyond("log_ratio", float(np.log(np.float32(veto))), below=True)


def vetoed_rows(rows: Rows, veto: float | None) -> NDArray[np.bool_]:
    """Rows with at least one such token."""
    if veto is None:
        return np.zeros(len(rows), np.bool_)
    return rows.columns[veto_quantity(veto)].sum > 0


def outcome(rows: Rows, correction: Correction) -> Outcome:
    """Apply a correction; the rejections all look at the original mask."""
    vetoed = vetoed_rows(rows, correction.veto)
    stays = kept_rows(rows, correction.rejections)
    if not correction.veto_on_weights:
        stays &= ~vetoed
    by_token = kept_quantity(correction.rejections)
    tokens = rows.lengths.astype(np.float64) if by_token is None else rows.columns[by_token].sum
    weighting = correction.weighting
    if weighting is None:
        return Outcome(np.where(stays, tokens, 0.0), vetoed, None, None)
    weights = applied_weights(rows, weighting)
    of_kept = weights
    if by_token is not None:
        of_kept = _weights_of_kept_tokens(rows, correction, tokens)
    if correction.veto_on_weights:
        # A product, as the trainer has it: NaN stays NaN.
        stay = (~vetoed).astype(np.float64)
        weights, of_kept = _times(stay, weights), _times(stay, of_kept)
    in_loss = _where(stays, of_kept) if correction.weights_applied else None
    return Outcome(np.where(stays, tokens, 0.0), vetoed, weights, in_loss)


def _weights_of_kept_tokens(rows: Rows, correction: Correction, tokens: Array) -> Column:
    assert correction.weighting is not None
    if correction.weighting.level == "token":
        quantity = kept_quantity(correction.rejections, bounded_quantity(correction.weighting))
        assert quantity is not None
        return rows.columns[quantity]
    of_rows = applied_weights(rows, correction.weighting).max
    return Column.of_sequences(of_rows, tokens)  # type: ignore[arg-type]


def _times(factor: Array, column: Column) -> Column:
    def product(values: Array) -> Array:
        return factor * values if len(values) else values

    return Column(*map(product, (column.sum, column.squares, column.max, column.min)))


def _where(keep: NDArray[np.bool_], column: Column) -> Column:
    def kept(values: Array) -> Array:
        return np.where(keep, values, 0.0) if len(values) else values

    return Column(kept(column.sum), kept(column.squares), kept(column.max), kept(column.min))


def quantities_of(correction: Correction) -> list[Quantity]:
    """What `outcome` reads of the tokens, besides what every trainer reads."""
    found: list[Quantity | None] = [kept_quantity(correction.rejections)]
    if correction.veto is not None:
        found.append(veto_quantity(correction.veto))
    if correction.weighting is not None and correction.weighting.level == "token":
        weights = bounded_quantity(correction.weighting)
        found += [weights, kept_quantity(correction.rejections, weights)]
    return [quantity for quantity in found if quantity is not None]
