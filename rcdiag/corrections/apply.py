"""Apply a correction to every sequence, for one setting or for thousands that differ in bounds.

`apply` is the only implementation. `outcome` is its result for a single correction;
`token_effects` is the effect of a single correction on every token.
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
    LOG_RATIO,
    RATIO,
    Quantity,
    bounded,
    bounded_ratio,
    named,
    stays,
    within,
)
from rcdiag.corrections.sequences import Sequences
from rcdiag.corrections.statistics import place_and_statistic

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Over = tuple[Rejection, ...]


def log_ratio(rows: Sequences, level: Level, over: Over = ()) -> Array:
    """Return the sum (`sequence`) or mean (`geometric`) of log_ratio over each row, nats.

    It is over the tokens that the rejections `over` keep; 0 for a row without such tokens.
    """
    if not over:
        total = rows.sum(LOG_RATIO)
        return total if level == "sequence" else total / (rows.lengths + rows.epsilon)
    total = rows.sum(LOG_RATIO.where(stays(over)))
    return total if level == "sequence" else total / np.maximum(rows.sum(stays(over)), 1.0)


def ratio(rows: Sequences, level: Level, over: Over = ()) -> Array:
    """Return exp of each row's log-ratio, clamped as by the trainer, [sequences]."""
    values = log_ratio(rows, level, over).astype(rows.dtype)
    return rows.guard.exp(values).astype(np.float64)


def token_ratio(weighting: Weighting) -> Quantity:
    """Return the ratio of each token, or of its segment."""
    return RATIO if weighting.level == "token" else named("segment")


def raw_weights(rows: Sequences, weighting: Weighting) -> Quantity | Array:
    """Return the ratios, of tokens or of rows, before they are truncated, clipped or zeroed."""
    if weighting.by_token:
        return token_ratio(weighting)
    return ratio(rows, weighting.level, weighting.over)


def bounded_weight(weighting: Weighting) -> Quantity:
    """Return the weight of each token: its ratio, treated as `weighting.outside` says."""
    ratios, outside = token_ratio(weighting), weighting.outside
    lower = 0.0 if outside == "truncate" else weighting.lower_or_reciprocal
    if outside == "mask" or (lower == 0.0 and np.isinf(weighting.upper)):
        return ratios
    if outside == "clip":
        return ratios.clip(lower, weighting.upper)
    return bounded_ratio(ratios, lower, weighting.upper, outside, weighting.nan_stays)


def token_weight(correction: Correction) -> Quantity:
    """Return the weight of each token in the loss, 0 where it is zeroed.

    If a sequence has a single weight, return 1 at each token that keeps it, 0 elsewhere.
    """
    assert correction.weighting is not None
    if not correction.weighting.by_token:
        return stays(correction.zeroing)
    weights = bounded_weight(correction.weighting)
    return weights.where(stays(correction.zeroing)) if correction.zeroing else weights


def weights_by_token(correction: Correction) -> bool:
    """Tell whether tokens of one sequence may have different weights, including zero."""
    weighting = correction.weighting
    return weighting is not None and (weighting.by_token or bool(correction.zeroing))


def applied_weights(rows: Sequences, weighting: Weighting) -> Quantity | Array:
    """Return the weights in the loss, before `Correction.zeroing` and batch normalisation.

    They are per token or per row, depending on the level; `Sequences.sum` accepts both.
    """
    return bounded_weight(weighting) if weighting.by_token else _row_weights(rows, weighting)


def clipped_weights(rows: Sequences, weighting: Weighting) -> Quantity | Array:
    """Return the ratio clipped to [lower, upper], which older versions of verl log."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.by_token:
        return token_ratio(weighting).clip(lower, upper)
    return np.clip(ratio(rows, weighting.level, weighting.over), lower, upper)


def statistic_of_rows(rows: Sequences, rejection: Rejection) -> Array:
    """Return the statistic of a rejection by sequence, [sequences]."""
    name, over = rejection.statistic, rejection.over
    if name in ("sequence", "geometric"):
        return ratio(rows, name, over)  # type: ignore[arg-type]
    place, of_tokens = place_and_statistic(name)
    values = named(of_tokens)
    if over:  # tokens that were rejected before do not contribute
        never = {"seq_max": -np.inf, "seq_min": np.inf}.get(place, 0.0)
        values = values.where(stays(over), never)
    if place == "seq_max":
        return rows.max(values)
    if place == "seq_min":
        return rows.min(values)
    if place == "seq_sum":
        return rows.sum(values)
    if over:
        result: Array = rows.sum(values) / np.maximum(rows.sum(stays(over)), 1.0)
        return result
    return rows.sum(values) / (rows.lengths + rows.epsilon)


def stays_by_token(rejections: Over) -> Quantity | None:
    """Return 1 at tokens that all token-level rejections keep; None if there are none."""
    by_token = tuple(rejection for rejection in rejections if rejection.of_tokens)
    return stays(by_token) if by_token else None


def enters_loss(correction: Correction) -> Quantity | None:
    """Return 1 at tokens that are neither rejected nor weighted with 0; None if all are 1.

    Rejections and weights of whole sequences do not count.
    """
    kept, weighting = stays_by_token(correction.rejections), correction.loss_weighting
    if weighting is None or not (correction.zeroing or weighting.zeroes_tokens):
        return kept
    weighted = token_weight(correction) > 0.0
    return weighted if kept is None else kept.where(weighted)


def below_veto(veto: float) -> Quantity:
    """Return 1 at tokens whose unclamped ratio is below the veto (log in float32, as in verl)."""
    return log_of_veto(veto) > LOG_RATIO


def log_of_veto(veto: float) -> float:
    """Return the log of the veto in float32, nats; a token with a smaller log_ratio triggers it."""
    return float(np.log(np.float32(veto)))


def vetoed_rows(rows: Sequences, veto: float | None) -> Flags:
    """Tell which sequences have a token whose ratio is below the veto, [sequences]."""
    if veto is None:
        return np.zeros(len(rows), np.bool_)
    return rows.sum(below_veto(veto)) > 0


class EstimatorSettings(Struct, frozen=True):
    """Settings of one estimator that differ only in their bounds, which are arrays [settings]."""

    count: int
    weighting: Weighting | None  # of the first setting; bounds are in weight_lower, weight_upper
    weight_lower: Array
    weight_upper: Array
    rejections: tuple[Rejection, ...]  # of the first setting; bounds are in reject_lower, _upper
    reject_lower: Array  # [rejections, settings]
    reject_upper: Array  # [rejections, settings]
    zeroing: tuple[Rejection, ...]  # the same for all settings: its bounds are not swept
    veto: Array | None  # [settings] log of the veto, nats
    veto_on_weights: bool  # True: the veto zeroes weights; False: it changes the mask

    @classmethod
    def of(cls, corrections: Sequence[Correction]) -> EstimatorSettings:
        """Combine corrections that differ only in their bounds."""
        first = corrections[0]
        weightings = [
            correction.weighting for correction in corrections if correction.weighting is not None
        ]
        vetoes = [
            log_of_veto(correction.veto)
            for correction in corrections
            if correction.veto is not None
        ]
        for given in (weightings, vetoes):
            assert len(given) in (0, len(corrections)), "settings are alike"
        assert all(
            len(correction.rejections) == len(first.rejections) for correction in corrections
        )
        bounds = [
            [(rejection.least, rejection.upper) for rejection in correction.rejections]
            for correction in corrections
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
    def discards_tokens(self) -> bool:
        """Whether single tokens are rejected, or have weight 0."""
        zeroes = self.weighting is not None and self.weighting.zeroes_tokens
        return zeroes or self.rejects_tokens

    @property
    def truncates(self) -> bool:
        return self.weighting is not None and self.weighting.outside == "truncate"

    @property
    def weighs_tokens(self) -> bool:
        return self.weighting is not None and self.weighting.by_token


class WeightSums(Struct, frozen=True):
    """Sums of weights and of squared weights over the tokens of each sequence."""

    sum: Array  # [sequences, settings], or [sequences] for one setting
    squares: Array


class TokenSums(Protocol):
    """Sums over the tokens of each sequence, for bounds that act on single tokens.

    For one correction they come from the pass over the table; for many settings of one estimator,
    from bins between their bounds. All are [sequences, settings], or [sequences, 1] if the settings
    agree.
    """

    @property
    def rows(self) -> Sequences: ...

    def kept_tokens(self, settings: EstimatorSettings) -> Array:
        """Count the tokens of each sequence that all token-level rejections keep."""
        ...

    def weights(self, settings: EstimatorSettings) -> WeightSums:
        """Sum the weights of all tokens of each sequence."""
        ...

    def kept_weights(self, settings: EstimatorSettings) -> WeightSums:
        """Sum the weights of the tokens that all token-level rejections keep."""
        ...

    def vetoed(self, settings: EstimatorSettings) -> Flags:
        """Tell which sequences have a token below the veto."""
        ...


class CorrectionOutcome(Struct, frozen=True):
    """The tokens and weights that are left in every sequence, for one setting or for many.

    Arrays are [sequences, settings] ([sequences, 1] if all settings agree), or [sequences] for one
    correction.
    """

    kept: Array  # tokens that stay in the loss mask
    weights: WeightSums | None  # of all tokens, before batch normalisation; None without weights
    # Weights in the loss, 0 at rejected tokens; None if weights are only logged.
    kept_weights: WeightSums | None

    @property
    def loss_weights(self) -> WeightSums:
        """Weights of the tokens in the loss mask; without weights, each counts as 1."""
        return self.kept_weights or WeightSums(self.kept, self.kept)

    @property
    def kept_tokens(self) -> int:
        return int(self.kept.sum())

    @property
    def kept_sequences(self) -> int:
        return int((self.kept > 0).sum())


def apply(sums: TokenSums, settings: EstimatorSettings) -> CorrectionOutcome:
    """Apply every setting to every sequence.

    A rejection sees the original mask, unless its `over` names rejections that come before it.
    """
    rows = sums.rows
    vetoed = None if settings.veto is None else sums.vetoed(settings)
    kept = sums.kept_tokens(settings)
    weights, of_kept = _weights(sums, settings, kept)
    stays = _stays(rows, settings)
    if vetoed is not None and not settings.veto_on_weights:
        stays = ~vetoed if stays is None else stays & ~vetoed
    elif vetoed is not None and weights is not None and of_kept is not None:
        # Weights times 1 or 0 as in the trainer, so that NaN stays NaN.
        factor = (~vetoed).astype(np.float64)
        weights, of_kept = (
            WeightSums(factor * one.sum, factor * one.squares) for one in (weights, of_kept)
        )
    if stays is not None:
        kept = np.where(stays, kept, 0.0)
        if of_kept is not None:
            of_kept = WeightSums(
                np.where(stays, of_kept.sum, 0.0), np.where(stays, of_kept.squares, 0.0)
            )
    return CorrectionOutcome(kept, weights, of_kept)


def _stays(rows: Sequences, settings: EstimatorSettings) -> Flags | None:
    """Tell which sequences all sequence-level rejections keep; None if there are none."""
    stays: Flags | None = None
    bounds = zip(settings.rejections, settings.reject_lower, settings.reject_upper, strict=True)
    for rejection, lower, upper in bounds:
        if not rejection.of_tokens:
            values = statistic_of_rows(rows, rejection)[:, None]
            inside = within(values, lower, upper)
            stays = inside if stays is None else stays & inside
    return stays


def _weights(
    sums: TokenSums, settings: EstimatorSettings, kept: Array
) -> tuple[WeightSums | None, WeightSums | None]:
    """Return the weights of all tokens, and of the tokens that token-level rejections keep."""
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
    if settings.zeroing:  # count the tokens that keep a weight
        counts = sums.weights(settings).sum
        kept = sums.kept_weights(settings).sum if settings.rejects_tokens else counts
    squares = np.square(of_rows)

    def summed(values: Array, count: Array) -> Array:
        # If all tokens are zeroed, the sum is 0 even if the weight was infinite.
        return np.where(count > 0.0, values * count, 0.0) if settings.zeroing else values * count

    return (
        WeightSums(summed(of_rows, counts), summed(squares, counts)),
        WeightSums(summed(of_rows, kept), summed(squares, kept)),
    )


class RowSums(Struct, frozen=True):
    """The sums of each row for one correction, from the columns of `Sequences`."""

    rows: Sequences
    correction: Correction

    def kept_tokens(self, settings: EstimatorSettings) -> Array:
        kept = stays_by_token(self.correction.rejections)
        counts = self.rows.lengths if kept is None else self.rows.sum(kept)
        return counts[:, None].astype(np.float64)

    def weights(self, settings: EstimatorSettings) -> WeightSums:
        return self._of(token_weight(self.correction))

    def kept_weights(self, settings: EstimatorSettings) -> WeightSums:
        kept = stays_by_token(self.correction.rejections)
        assert kept is not None
        return self._of(token_weight(self.correction).where(kept))

    def vetoed(self, settings: EstimatorSettings) -> Flags:
        return vetoed_rows(self.rows, self.correction.veto)[:, None]

    def _of(self, quantity: Quantity) -> WeightSums:
        return WeightSums(self.rows.sum(quantity)[:, None], self.rows.squares(quantity)[:, None])


def outcome(rows: Sequences, correction: Correction) -> CorrectionOutcome:
    """Apply one correction to rows, under its guard."""
    made = apply(RowSums(rows, correction), EstimatorSettings.of([correction]))
    all_weights, in_loss = (
        None if weights is None else WeightSums(weights.sum[:, 0], weights.squares[:, 0])
        for weights in (made.weights, made.kept_weights if correction.weights_applied else None)
    )
    return CorrectionOutcome(made.kept[:, 0], all_weights, in_loss)


class TokenEffects(Struct, frozen=True):
    """The weight of every sampled token under one correction, and whether it stays in the mask."""

    kept: Flags  # [tokens] whether the token stays in the loss mask
    # [tokens] before batch normalisation; rejected tokens keep their weight, as in trainers. None
    # without weights, or if they are only logged.
    weights: Array | None

    def at(self, tokens: NDArray[np.int64]) -> TokenEffects:
        """Return the effects on some tokens, given their indices."""
        weights = None if self.weights is None else self.weights[tokens]
        return TokenEffects(self.kept[tokens], weights)

    @property
    def final(self) -> Array:
        """Weights in the loss, 0 at rejected tokens, [tokens]."""
        weights = np.ones(len(self.kept)) if self.weights is None else self.weights
        return np.where(self.kept, weights, 0.0)


def token_effects(correction: Correction, tokens: Tokens, rows: Sequences) -> TokenEffects:
    """Apply one correction to single tokens; `rows` are the sequences of the same tokens."""
    tokens, rows = tokens.under(correction.guard), rows.under(correction.guard)
    vetoed = vetoed_rows(rows, correction.veto)
    stays = _stays(rows, EstimatorSettings.of([correction]))
    of_rows = np.ones(len(rows), np.bool_) if stays is None else stays[:, 0]
    if not correction.veto_on_weights:
        of_rows = of_rows & ~vetoed
    kept = np.repeat(of_rows, rows.lengths)
    if (by_token := stays_by_token(correction.rejections)) is not None:
        kept &= by_token.of(tokens)
    weights = _token_weights(correction, tokens, rows)
    if weights is not None and correction.veto_on_weights:
        weights = weights * np.repeat(~vetoed, rows.lengths)
    return TokenEffects(kept, weights)


def _token_weights(correction: Correction, tokens: Tokens, rows: Sequences) -> Array | None:
    weighting = correction.loss_weighting
    if weighting is None:
        return None
    if weighting.by_token:
        return token_weight(correction).of(tokens).astype(np.float64, copy=False)
    weights = np.repeat(_row_weights(rows, weighting), rows.lengths)
    return np.where(stays(correction.zeroing).of(tokens), weights, 0.0)


def _row_weights(rows: Sequences, weighting: Weighting) -> Array:
    """Return the weight of each sequence at the weighting's level, [sequences]."""
    lower, upper = np.array([weighting.lower_or_reciprocal]), np.array([weighting.upper])
    return _bounded_rows(rows, weighting, lower, upper)[:, 0]


def _bounded_rows(rows: Sequences, weighting: Weighting, lower: Array, upper: Array) -> Array:
    """Return the weight of each sequence for each pair of bounds, [sequences, settings]."""
    raw = ratio(rows, weighting.level, weighting.over)[:, None]
    weights = bounded(raw, lower, upper, weighting.outside, nan_stays=weighting.nan_stays)
    if not weighting.only_outside:
        return weights
    # Bounds act only on sequences that one of these rejections would reject.
    inside = np.ones(len(rows), np.bool_)
    for rejection in weighting.only_outside:
        inside &= within(statistic_of_rows(rows, rejection), rejection.least, rejection.upper)
    return np.where(inside[:, None], raw, weights)
