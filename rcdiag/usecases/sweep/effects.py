"""What each setting of a family leaves of each sequence: arrays [sequences, settings]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    log_ratio,
    ratio,
    statistic_of_rows,
    token_bounds,
    veto_quantity,
)
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.quantities import SAFETY_BOUND, Ratio, TrueRatio, within
from rcdiag.corrections.sequences import Rows
from rcdiag.usecases.sweep.thresholds import Array, Chunk, Window, above

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Settings:
    """The corrections of a family: alike but for their bounds, which are arrays [settings]."""

    count: int
    weighting: Weighting | None  # the first's; its bounds are in weight_lower, weight_upper
    weight_lower: Array
    weight_upper: Array
    rejection: Rejection | None
    reject_lower: Array
    reject_upper: Array
    veto: Array | None  # smallest log-ratio that stays, nats

    @classmethod
    def of(cls, corrections: Sequence[Correction]) -> Settings:
        first = corrections[0]
        weightings = [each.weighting for each in corrections if each.weighting is not None]
        rejections = [rejection for each in corrections for rejection in each.rejections]
        vetoes = [veto_quantity(each.veto).bound for each in corrections if each.veto is not None]
        for found in (weightings, rejections, vetoes):
            assert len(found) in (0, len(corrections)), "settings of a family are alike"
        # Excess is of unclamped ratios, and sorted by clamped ones: the same up to the clamp.
        assert all(each.upper < np.exp(SAFETY_BOUND) for each in weightings)
        return cls(
            len(corrections),
            first.weighting,
            np.array([each.lower_or_reciprocal for each in weightings]),
            np.array([each.upper for each in weightings]),
            first.rejections[0] if rejections else None,
            np.array([-np.inf if each.lower is None else each.lower for each in rejections]),
            np.array([each.upper for each in rejections]),
            np.array(vetoes) if vetoes else None,
        )

    @property
    def rejects_tokens(self) -> bool:
        return self.rejection is not None and self.rejection.of_tokens

    @property
    def truncates(self) -> bool:
        return self.weighting is not None and self.weighting.outside == "truncate"

    @property
    def weighs_tokens(self) -> bool:
        return self.weighting is not None and self.weighting.level == "token"


@dataclass(frozen=True, slots=True)
class Effect:
    """Of every sequence and setting; one column where all settings agree."""

    kept: Array  # tokens
    weights: Array  # sum of the weights of kept tokens; their number without weights
    squares: Array  # the same of squared weights
    mass: Array  # sum of the true ratios of the tokens that rejection by token keeps
    excess: Array | None  # what truncation takes off the true ratios, at the level of the weights
    # Sums of weights and of their squares before rejection, as trainers log them; [settings].
    logged: tuple[Array, Array] | None


def effect(chunk: Chunk, settings: Settings) -> Effect:
    """Apply every setting of a family to some sequences."""
    kept, mass = _kept(chunk, settings)
    applied = _applied(chunk, settings)
    weights, squares = (kept, kept) if applied is None else applied
    if settings.rejects_tokens and applied is not None:
        weights, squares = _of_kept_tokens(chunk, settings)
    if (stays := _stays(chunk, settings)) is not None:
        kept, weights, squares = (np.where(stays, each, 0.0) for each in (kept, weights, squares))
    logged = None
    if applied is not None:
        logged = (applied[0].sum(axis=0), applied[1].sum(axis=0))
    return Effect(kept, weights, squares, mass, _excess(chunk, settings), logged)


def _token_window(settings: Settings) -> tuple[str, Window]:
    """The statistic and the bounds of a rejection by token."""
    assert settings.rejection is not None
    name = token_bounds(settings.rejection)[0]
    return name, Window.of(settings.reject_lower, settings.reject_upper)


def _kept(chunk: Chunk, settings: Settings) -> tuple[Array, Array]:
    """Tokens that rejection by token keeps, and the sum of their true ratios."""
    if not settings.rejects_tokens:
        return chunk.rows.lengths[:, None].astype(np.float64), _true(chunk)[:, None]
    name, window = _token_window(settings)
    return chunk.inside(name, window, "count"), chunk.inside(name, window, "true")


def _true(chunk: Chunk) -> Array:
    return chunk.rows.columns[TrueRatio()].sum


def _stays(chunk: Chunk, settings: Settings) -> Flags | None:
    """Sequences that rejection by sequence and veto keep; None where there is neither."""
    if settings.veto is not None:
        return chunk.lowest[:, None] >= settings.veto
    if settings.rejection is None or settings.rejects_tokens:
        return None
    values = statistic_of_rows(chunk.rows, settings.rejection.statistic)[:, None]
    return within(values, settings.reject_lower, settings.reject_upper)  # type: ignore[arg-type]


def _applied(chunk: Chunk, settings: Settings) -> tuple[Array, Array] | None:
    """Weights and their squares, summed by sequence, before rejection."""
    if settings.weighting is None:
        return None
    if settings.weighs_tokens:
        return _token_weights(chunk, settings)
    assert settings.weighting.level == "sequence"
    weights = _row_weights(chunk.rows, settings)
    lengths = chunk.rows.lengths[:, None]
    return weights * lengths, np.square(weights) * lengths


def _row_weights(rows: Rows, settings: Settings) -> Array:
    """The ratio of sequences, and what becomes of it outside the bounds."""
    assert settings.weighting is not None
    raw = ratio(rows, settings.weighting.level)[:, None]
    if settings.truncates:
        return np.minimum(raw, settings.weight_upper)
    if settings.weighting.outside == "mask":
        return raw
    assert settings.weighting.outside == "zero"
    keep = within(raw, settings.weight_lower, settings.weight_upper)  # type: ignore[arg-type]
    return np.where(keep, raw, 0.0)


def _token_weights(chunk: Chunk, settings: Settings) -> tuple[Array, Array]:
    assert settings.weighting is not None
    if settings.truncates:
        return _truncated(chunk, settings)
    if settings.weighting.outside == "mask":
        raw = chunk.rows.columns[Ratio()]
        return raw.sum[:, None], raw.squares[:, None]
    assert settings.weighting.outside == "zero"
    window = Window.of(settings.weight_lower, settings.weight_upper)
    return chunk.inside("ratio", window, "ratio"), chunk.inside("ratio", window, "squares")


def _truncated(chunk: Chunk, settings: Settings) -> tuple[Array, Array]:
    """Sum of min(ratio, C), and of its square: tokens up to C, and C for each above."""
    edges, index = np.unique(settings.weight_upper, return_inverse=True)
    window = Window.of(np.full(len(edges), -np.inf), edges)
    counts = above(chunk.counts(edges))
    nan = np.where(np.isnan(chunk.rows.columns[Ratio()].sum), np.nan, 0.0)[:, None]
    sums = (
        chunk.inside("ratio", window, "ratio") + edges * counts + nan,
        chunk.inside("ratio", window, "squares") + np.square(edges) * counts + nan,
    )
    return sums[0][:, index], sums[1][:, index]


def _of_kept_tokens(chunk: Chunk, settings: Settings) -> tuple[Array, Array]:
    """The ratios of the tokens that rejection by token keeps; no family truncates them too."""
    assert settings.weighs_tokens
    assert settings.weighting is not None
    assert settings.weighting.outside == "mask"
    name, window = _token_window(settings)
    return chunk.inside(name, window, "ratio"), chunk.inside(name, window, "squares")


def _excess(chunk: Chunk, settings: Settings) -> Array | None:
    """(true ratio - C)+ at the level of the weights."""
    if not settings.truncates:
        return None
    if settings.weighs_tokens:
        edges, index = np.unique(settings.weight_upper, return_inverse=True)
        return chunk.excess(edges)[:, index]
    true = np.exp(log_ratio(chunk.rows, "sequence"))[:, None]
    return np.maximum(true - settings.weight_upper, 0.0)
