"""Weights and statistics of whole sequences, from what the rows keep of their tokens.

What a correction leaves of a batch: kept tokens and sequences, and their weights.

What a correction does to every single token: its weight, and whether it stays in the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.quantities import (
    SAFETY_BOUND,
    Beyond,
    K,
    Kept,
    LogRatio,
    Quantity,
    Ratio,
    Tokens,
    within,
)
from rcdiag.corrections.sequences import Column, Rows

Array = NDArray[np.float64]


def log_ratio(rows: Rows, level: Level) -> Array:
    """Summed (`sequence`) or mean (`geometric`) log-ratio of each row, unclamped, nats."""
    total = rows.columns[LogRatio()].sum
    return total if level == "sequence" else total / (rows.lengths + rows.epsilon)


def ratio(rows: Rows, level: Level) -> Array:
    """Exp of the row's log-ratio, clamped to +-20."""
    values = np.clip(log_ratio(rows, level), -SAFETY_BOUND, SAFETY_BOUND).astype(rows.dtype)
    return np.exp(values).astype(np.float64)


def raw_weights(rows: Rows, weighting: Weighting) -> Column:
    """The ratio before anything happens to it outside the bounds."""
    if weighting.level == "token":
        return rows.columns[Ratio()]
    return Column.of_sequences(ratio(rows, weighting.level), rows.lengths)


def bounded_quantity(weighting: Weighting) -> Ratio:
    """What becomes of the ratio at the bounds."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    return {
        "truncate": Ratio(upper=upper),
        "clip": Ratio(lower, upper),
        "zero": Ratio(lower, upper, zero=True, nan_stays=weighting.nan_stays),
        "mask": Ratio(),
    }[weighting.outside]


def bounded(values: Array, weighting: Weighting) -> Array:
    """The same for given ratios."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.outside == "truncate":
        return np.minimum(values, upper)
    if weighting.outside == "clip":
        return np.clip(values, lower, upper)
    if weighting.outside == "zero":
        zeroed = np.where(within(values, lower, upper), values, 0.0)
        return np.where(np.isnan(values), values, zeroed) if weighting.nan_stays else zeroed
    return values


def applied_weights(rows: Rows, weighting: Weighting) -> Column:
    """Weights as they go into the loss, before batch normalisation."""
    if weighting.level == "token":
        return rows.columns[bounded_quantity(weighting)]
    raw = ratio(rows, weighting.level)
    return Column.of_sequences(bounded(raw, weighting), rows.lengths)


def clipped_weights(rows: Rows, weighting: Weighting) -> Column:
    """The ratio clipped to [lower, upper], for the statistics of older generations."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.level == "token":
        return rows.columns[Ratio(lower, upper)]
    return Column.of_sequences(np.clip(ratio(rows, weighting.level), lower, upper), rows.lengths)


def statistic_of_rows(rows: Rows, name: str) -> Array:
    """`sequence`, `geometric` (ratios) or `seq_{sum,mean,max}_{k}` (nats) of each row."""
    if name in ("sequence", "geometric"):
        return ratio(rows, name)  # type: ignore[arg-type]
    _, aggregation, k = name.split("_")
    column = rows.columns[K(k)]
    if aggregation == "sum":
        return column.sum
    return column.max if aggregation == "max" else column.sum / (rows.lengths + rows.epsilon)


def token_bounds(rejection: Rejection) -> tuple[str, float, float]:
    """Statistic and bounds of a rejection by token."""
    name = "ratio" if rejection.statistic == "token" else rejection.statistic.removeprefix("token_")
    lower = -np.inf if rejection.lower is None else rejection.lower
    return name, lower, rejection.upper


def kept_quantity(
    rejections: tuple[Rejection, ...], weights: Quantity | None = None
) -> Kept | None:
    """`weights` (or 1) of the tokens that all rejections by token keep; None if there are none."""
    bounds = tuple(token_bounds(each) for each in rejections if each.of_tokens)
    return Kept(bounds, weights) if bounds else None


def kept_rows(rows: Rows, rejections: tuple[Rejection, ...]) -> NDArray[np.bool_]:
    """Rows that all rejections by sequence keep."""
    keep = np.ones(len(rows), np.bool_)
    for each in rejections:
        if not each.of_tokens:
            lower = -np.inf if each.lower is None else each.lower
            keep &= within(statistic_of_rows(rows, each.statistic), lower, each.upper)
    return keep


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
