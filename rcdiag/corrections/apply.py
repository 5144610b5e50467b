"""Corrections are applied here: one, or a thousand settings of one, to every sequence.

`apply` is the one implementation; `outcome` is that of a single correction, `token_effects` what a
single correction does to every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.quantities import (
    Beyond,
    K,
    Kept,
    LogRatio,
    Quantity,
    Ratio,
    Within,
    bounded,
)
from rcdiag.corrections.reduced import Column, Reduced
from rcdiag.corrections.rejections import tokens_kept, within
from rcdiag.corrections.sequences import Rows
from rcdiag.corrections.statistics import row_statistic, token_statistic

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Over = tuple[Rejection, ...]


def log_ratio(rows: Rows, level: Level, over: Over = ()) -> Array:
    """Return the summed (`sequence`) or mean (`geometric`) log-ratio of rows before exp, nats.

    It is that of the tokens which the rejections `over` leave; a row that they empty has 0.
    """
    if not over:
        total = rows.columns[LogRatio()].sum
        return total if level == "sequence" else total / (rows.lengths + rows.epsilon)
    total = rows.columns[Within(over, LogRatio())].sum
    return total if level == "sequence" else total / np.maximum(rows.columns[Within(over)].sum, 1.0)


def ratio(rows: Rows, level: Level, over: Over = ()) -> Array:
    """Return exp of each row's log-ratio, clamped as the trainer does, [sequences]."""
    values = log_ratio(rows, level, over).astype(rows.dtype)
    return rows.guard.exp(values).astype(np.float64)


def raw_weights(rows: Rows, weighting: Weighting) -> Reduced:
    """Return the ratio before anything happens to it outside the bounds."""
    if weighting.by_token:
        return rows.columns[Ratio(level=weighting.level)]
    return Column.of_sequences(ratio(rows, weighting.level, weighting.over), rows.lengths)


def bounded_quantity(weighting: Weighting) -> Ratio:
    """Return the weight of single tokens: the ratio, with its treatment at the bounds."""
    lower, upper, level = weighting.lower_or_reciprocal, weighting.upper, weighting.level
    if weighting.outside == "mask":
        return Ratio(level=level)
    if weighting.outside == "truncate":
        return Ratio(upper=upper, outside="truncate", level=level)
    return Ratio(lower, upper, weighting.outside, weighting.nan_stays, level=level)


def weight_quantity(correction: Correction) -> Quantity:
    """Return the weight of single tokens that goes into the loss, 0 where it is zeroed.

    Where a sequence has one weight it is 1 at each token that keeps this weight.
    """
    assert correction.weighting is not None
    if not correction.weighting.by_token:
        return Within(correction.zeroing)
    weights: Quantity = bounded_quantity(correction.weighting)
    return Within(correction.zeroing, weights) if correction.zeroing else weights


def weights_by_token(correction: Correction) -> bool:
    """Tell whether tokens of one sequence may have different weights, a zero among them."""
    weighting = correction.weighting
    return weighting is not None and (weighting.by_token or bool(correction.zeroing))


def applied_weights(rows: Rows, weighting: Weighting) -> Reduced:
    """Return the weights that go into the loss, before zeroing by others and normalisation."""
    if weighting.by_token:
        return rows.columns[bounded_quantity(weighting)]
    return Column.of_sequences(_sequence_weights(rows, weighting), rows.lengths)


def clipped_weights(rows: Rows, weighting: Weighting) -> Reduced:
    """Return the ratio clipped to [lower, upper], which older generations log."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.by_token:
        return rows.columns[Ratio(lower, upper, level=weighting.level)]
    clipped = np.clip(ratio(rows, weighting.level, weighting.over), lower, upper)
    return Column.of_sequences(clipped, rows.lengths)


def statistic_of_rows(rows: Rows, rejection: Rejection) -> Array:
    """Return the statistic of a rejection by sequence, [sequences]."""
    name, over = rejection.statistic, rejection.over
    if name in ("sequence", "geometric"):
        return ratio(rows, name, over)  # type: ignore[arg-type]
    place, _of_tokens = row_statistic(name)
    column = rows.columns[_of_tokens_left(rejection)]
    if place in ("max", "min"):
        return column.max if place == "max" else column.min
    if place == "sum":
        return column.sum
    if over:
        return column.sum / np.maximum(rows.columns[Within(over)].sum, 1.0)
    return column.sum / (rows.lengths + rows.epsilon)


def _of_tokens_left(rejection: Rejection) -> Quantity:
    """Return what a rejection by sequence sums or takes the extreme of, at the tokens left."""
    if rejection.of_ratio:
        return Within(rejection.over, LogRatio()) if rejection.over else LogRatio()
    place, name = row_statistic(rejection.statistic)
    if not rejection.over:
        return K(name)
    never_the_extreme = {"max": -np.inf, "min": np.inf}
    return Within(rejection.over, K(name), never_the_extreme.get(place, 0.0))


def _read_by_rows(rejection: Rejection) -> list[Quantity]:
    """Return the quantities of tokens that the statistic of a rejection by sequence reads."""
    if rejection.of_tokens:
        return []
    counts = [Within(rejection.over)] if rejection.over else []
    return [_of_tokens_left(rejection), *counts]


def token_bounds(rejection: Rejection) -> tuple[str, float, float]:
    """Return the statistic and the bounds of a rejection by token."""
    lower = -np.inf if rejection.lower is None else rejection.lower
    return token_statistic(rejection.statistic), lower, rejection.upper


def kept_quantity(
    rejections: tuple[Rejection, ...], weights: Quantity | None = None
) -> Kept | None:
    """Return `weights` (or 1) of tokens that all rejections by token keep; None without any."""
    bounds = tuple(token_bounds(rejection) for rejection in rejections if rejection.of_tokens)
    return Kept(bounds, weights) if bounds else None


def veto_quantity(veto: float) -> Beyond:
    """Return 1 at tokens with unclamped ratio below the veto; its log is in float32 (verl)."""
    return Beyond("log_ratio", float(np.log(np.float32(veto))), below=True)


def vetoed_rows(rows: Rows, veto: float | None) -> Flags:
    """Return which sequences have a token whose ratio is below the veto, [sequences]."""
    if veto is None:
        return np.zeros(len(rows), np.bool_)
    return rows.columns[veto_quantity(veto)].sum > 0


def quantities_of(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `outcome` reads, beyond what every trainer reads."""
    quantities: list[Quantity | None] = [LogRatio(), kept_quantity(correction.rejections)]
    weighting = correction.weighting
    conditions = () if weighting is None else weighting.only_outside
    for rejection in (*correction.rejections, *correction.zeroing, *conditions):
        quantities += _read_by_rows(rejection)
    if correction.veto is not None:
        quantities.append(veto_quantity(correction.veto))
    if weighting is not None and weighting.over:
        quantities += [Within(weighting.over, LogRatio()), Within(weighting.over)]
    if weighting is not None and weights_by_token(correction):
        weights = weight_quantity(correction)
        quantities += [weights, kept_quantity(correction.rejections, weights)]
    return [quantity for quantity in quantities if quantity is not None]


class Settings(Struct, frozen=True):
    """Settings of one estimator, alike but for their bounds, which are arrays [settings]."""

    count: int
    weighting: Weighting | None  # of the first; its bounds are in weight_lower, weight_upper
    weight_lower: Array
    weight_upper: Array
    rejections: tuple[Rejection, ...]  # of the first; their bounds are in reject_lower and _upper
    reject_lower: Array  # [rejections, settings]
    reject_upper: Array  # [rejections, settings]
    zeroing: tuple[Rejection, ...]  # of all settings: their bounds are not swept
    veto: Array | None  # smallest log-ratio of a token that takes no sequence out, nats
    veto_on_weights: bool  # then the veto zeroes weights and leaves the mask alone

    @classmethod
    def of(cls, corrections: Sequence[Correction]) -> Settings:
        first = corrections[0]
        weightings = [
            correction.weighting for correction in corrections if correction.weighting is not None
        ]
        vetoes = [
            veto_quantity(correction.veto).bound
            for correction in corrections
            if correction.veto is not None
        ]
        for given in (weightings, vetoes):
            assert len(given) in (0, len(corrections)), "settings are alike"
        assert all(
            len(correction.rejections) == len(first.rejections) for correction in corrections
        )
        by_setting = [correction.rejections for correction in corrections]
        bounds = [
            [
                (-np.inf if rejection.lower is None else rejection.lower, rejection.upper)
                for rejection in rejections
            ]
            for rejections in by_setting
        ]
        edges = np.array(bounds, np.float64).reshape(len(corrections), len(first.rejections), 2)
        return cls(
            len(corrections),
            first.weighting,
            np.array([weighting.lower_or_reciprocal for weighting in weightings]),
            np.array([weighting.upper for weighting in weightings]),
            first.rejections,
            edges[:, :, 0].T,
            edges[:, :, 1].T,
            first.zeroing,
            np.array(vetoes) if vetoes else None,
            first.veto_on_weights,
        )

    @property
    def rejects_tokens(self) -> bool:
        return any(rejection.of_tokens for rejection in self.rejections)

    @property
    def truncates(self) -> bool:
        return self.weighting is not None and self.weighting.outside == "truncate"

    @property
    def weighs_tokens(self) -> bool:
        return self.weighting is not None and self.weighting.by_token


class WeightSums(Struct, frozen=True):
    """Weights and their squares, summed over the tokens of each sequence."""

    sum: Array  # [sequences, settings], or [sequences] of one setting
    squares: Array


class TokenSums(Protocol):
    """Sums over the tokens of each sequence, for bounds that act on single tokens.

    One correction has them from the pass over the table; a thousand settings of one estimator have
    them from bins between their bounds. All are [sequences, settings], or one column where the
    settings agree.
    """

    @property
    def rows(self) -> Rows: ...

    def kept_tokens(self, settings: Settings) -> Array:
        """Count the tokens of each sequence that all rejections by token keep."""
        ...

    def weights(self, settings: Settings) -> WeightSums:
        """Sum the weights of all tokens of each sequence."""
        ...

    def kept_weights(self, settings: Settings) -> WeightSums:
        """Sum the weights of tokens that all rejections by token keep."""
        ...

    def vetoed(self, settings: Settings) -> Flags:
        """Tell which sequences have a token below the veto."""
        ...


class Effect(Struct, frozen=True):
    """The state in which settings leave every sequence; one column where all settings agree."""

    kept: Array  # [sequences, settings] tokens that stay in the loss mask
    vetoed: Flags | None  # [sequences, settings]; None without a veto
    weights: WeightSums | None  # of all tokens, before batch normalisation; None without weights
    kept_weights: WeightSums | None  # of tokens in the loss mask

    @property
    def loss_weights(self) -> WeightSums:
        """Weights of the tokens in the loss mask; 1 for each without weights."""
        return self.kept_weights or WeightSums(self.kept, self.kept)


def apply(sums: TokenSums, settings: Settings) -> Effect:
    """Apply every setting to every sequence.

    A rejection looks at the original mask, unless it says `over` which tokens it is taken.
    """
    rows = sums.rows
    vetoed = None if settings.veto is None else sums.vetoed(settings)
    kept = sums.kept_tokens(settings)
    weights, of_kept = _weights(sums, settings, kept)
    stays = _stays(rows, settings)
    if vetoed is not None and not settings.veto_on_weights:
        stays = ~vetoed if stays is None else stays & ~vetoed
    elif vetoed is not None and weights is not None and of_kept is not None:
        weights, of_kept = (_times(~vetoed, weight_sums) for weight_sums in (weights, of_kept))
    if stays is not None:
        kept = np.where(stays, kept, 0.0)
        of_kept = of_kept and _where(stays, of_kept)
    return Effect(kept, vetoed, weights, of_kept)


def _stays(rows: Rows, settings: Settings) -> Flags | None:
    """Return which sequences all rejections by sequence keep; None where there are none."""
    stays: Flags | None = None
    bounds = zip(settings.rejections, settings.reject_lower, settings.reject_upper, strict=True)
    for rejection, lower, upper in bounds:
        if not rejection.of_tokens:
            values = statistic_of_rows(rows, rejection)[:, None]
            inside = within(values, lower, upper)
            stays = inside if stays is None else stays & inside
    return stays


def _weights(
    sums: TokenSums, settings: Settings, kept: Array
) -> tuple[WeightSums | None, WeightSums | None]:
    """Return the weights of all tokens, and of those that rejection by token keeps."""
    weighting = settings.weighting
    if weighting is None:
        return None, None
    if weighting.by_token:
        weights = sums.weights(settings)
        return weights, sums.kept_weights(settings) if settings.rejects_tokens else weights
    of_rows = _bounded_rows(
        sums.rows, weighting, settings.weight_lower[None, :], settings.weight_upper[None, :]
    )
    counts: Array = sums.rows.lengths[:, None].astype(np.float64)
    if settings.zeroing:  # the counts of tokens that keep a weight
        counts = sums.weights(settings).sum
        kept = sums.kept_weights(settings).sum if settings.rejects_tokens else counts
    squares = np.square(of_rows)
    return (
        WeightSums(of_rows * counts, squares * counts),
        WeightSums(of_rows * kept, squares * kept),
    )


def _times(stays: Flags, weights: WeightSums) -> WeightSums:
    """Multiply weights by 1 or 0, as the trainer does, so that NaN stays NaN."""
    factor = stays.astype(np.float64)
    return WeightSums(factor * weights.sum, factor * weights.squares)


def _where(stays: Flags, weights: WeightSums) -> WeightSums:
    return WeightSums(np.where(stays, weights.sum, 0.0), np.where(stays, weights.squares, 0.0))


class StreamedSums(Struct, frozen=True):
    """The sums that a pass over the table keeps for one correction."""

    rows: Rows
    correction: Correction

    def kept_tokens(self, settings: Settings) -> Array:
        by_token = kept_quantity(self.correction.rejections)
        if by_token is None:
            return self.rows.lengths[:, None].astype(np.float64)
        return self.rows.columns[by_token].sum[:, None]

    def weights(self, settings: Settings) -> WeightSums:
        return self._of(weight_quantity(self.correction))

    def kept_weights(self, settings: Settings) -> WeightSums:
        quantity = kept_quantity(self.correction.rejections, weight_quantity(self.correction))
        assert quantity is not None
        return self._of(quantity)

    def vetoed(self, settings: Settings) -> Flags:
        return vetoed_rows(self.rows, self.correction.veto)[:, None]

    def _of(self, quantity: Quantity) -> WeightSums:
        column = self.rows.columns[quantity]
        return WeightSums(column.sum[:, None], column.squares[:, None])


class Outcome(Struct, frozen=True):
    """The tokens and weights that one correction leaves of every sequence."""

    kept: Array  # [sequences] tokens that stay in the loss mask
    weights: WeightSums | None  # of all tokens, before batch normalisation; 0 where zeroed
    # Weights in the loss: 0 at tokens that are rejected; None where weights are logged only.
    kept_weights: WeightSums | None

    @property
    def kept_tokens(self) -> int:
        return int(self.kept.sum())

    @property
    def kept_sequences(self) -> int:
        return int((self.kept > 0).sum())


def outcome(rows: Rows, correction: Correction) -> Outcome:
    """Apply one correction; `rows` hold the quantities of `quantities_of`, under its guard."""
    effect = apply(StreamedSums(rows, correction), Settings.of([correction]))
    applied = correction.weights_applied
    return Outcome(
        effect.kept[:, 0], _only(effect.weights), _only(effect.kept_weights) if applied else None
    )


def _only(weights: WeightSums | None) -> WeightSums | None:
    """Return the column of the only setting."""
    return None if weights is None else WeightSums(weights.sum[:, 0], weights.squares[:, 0])


class TokenEffects(Struct, frozen=True):
    """The weight and the verdict of one correction for every sampled token of a batch."""

    kept: Flags  # [tokens] whether the token stays in the loss mask
    # [tokens] before batch normalisation; rejected tokens keep theirs, as in trainers. None
    # without weights, or where they are logged only.
    weights: Array | None

    def at(self, tokens: NDArray[np.int64]) -> TokenEffects:
        """Return the effects on the tokens at some places."""
        weights = None if self.weights is None else self.weights[tokens]
        return TokenEffects(self.kept[tokens], weights)

    @property
    def final(self) -> Array:
        """Weights in the loss, 0 where a token is rejected, [tokens]."""
        weights = np.ones(len(self.kept)) if self.weights is None else self.weights
        return np.where(self.kept, weights, 0.0)


def token_effects(correction: Correction, tokens: Tokens, rows: Rows) -> TokenEffects:
    """Apply one correction to single tokens; `rows` are those of the same tokens."""
    tokens, rows = tokens.under(correction.guard), rows.under(correction.guard)
    vetoed = vetoed_rows(rows, correction.veto)
    stays = _stays(rows, Settings.of([correction]))
    of_rows = np.ones(len(rows), np.bool_) if stays is None else stays[:, 0]
    if not correction.veto_on_weights:
        of_rows = of_rows & ~vetoed
    kept = np.repeat(of_rows, rows.lengths)
    if (by_token := kept_quantity(correction.rejections)) is not None:
        kept &= by_token.of(tokens) > 0
    weights = _token_weights(correction, tokens, rows)
    if weights is not None and correction.veto_on_weights:
        weights = weights * np.repeat(~vetoed, rows.lengths)
    return TokenEffects(kept, weights)


def _token_weights(correction: Correction, tokens: Tokens, rows: Rows) -> Array | None:
    weighting = correction.loss_weighting
    if weighting is None:
        return None
    if weighting.by_token:
        return weight_quantity(correction).of(tokens).astype(np.float64, copy=False)
    weights = np.repeat(_sequence_weights(rows, weighting), rows.lengths)
    return np.where(tokens_kept(tokens, correction.zeroing), weights, 0.0)


def _sequence_weights(rows: Rows, weighting: Weighting) -> Array:
    """Return the weight of each sequence at its level, [sequences]."""
    lower, upper = np.array([weighting.lower_or_reciprocal]), np.array([weighting.upper])
    return _bounded_rows(rows, weighting, lower, upper)[:, 0]


def _bounded_rows(rows: Rows, weighting: Weighting, lower: Array, upper: Array) -> Array:
    """Return the weight of each sequence under bounds [settings], [sequences, settings]."""
    raw = ratio(rows, weighting.level, weighting.over)[:, None]
    weights = bounded(raw, lower, upper, weighting.outside, nan_stays=weighting.nan_stays)
    if not weighting.only_outside:
        return weights
    return np.where(_inside_all(rows, weighting.only_outside)[:, None], raw, weights)


def _inside_all(rows: Rows, rejections: Over) -> Flags:
    """Return which sequences all of some rejections by sequence would keep, [sequences]."""
    inside = np.ones(len(rows), np.bool_)
    for rejection in rejections:
        lower = -np.inf if rejection.lower is None else rejection.lower
        inside &= within(statistic_of_rows(rows, rejection), lower, rejection.upper)
    return inside
