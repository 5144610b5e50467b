"""What every setting of a family leaves of each sequence, and what that costs in true ratios."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcdiag.corrections.apply import Effect, Settings, apply, log_ratio
from rcdiag.corrections.quantities import SAFETY_BOUND, TrueRatio
from rcdiag.usecases.sweep.thresholds import Array, Chunk


@dataclass(frozen=True, slots=True)
class FamilyEffect:
    """The effect of all settings of a family on some sequences, [sequences, settings]."""

    effect: Effect
    mass: Array  # sum of the true ratios of the tokens that rejection by token keeps
    excess: Array | None  # what truncation takes off the true ratios, at the level of the weights

    @property
    def kept(self) -> Array:
        """Tokens that stay in the loss mask."""
        return self.effect.kept

    @property
    def weights(self) -> Array:
        """Sum of the weights of kept tokens; their number without weights."""
        weights = self.effect.kept_weights
        return self.effect.kept if weights is None else weights.sum

    @property
    def squares(self) -> Array:
        """Sum of the squared weights of kept tokens; their number without weights."""
        weights = self.effect.kept_weights
        return self.effect.kept if weights is None else weights.squares


def family_effect(chunk: Chunk, settings: Settings) -> FamilyEffect:
    """Apply every setting of a family to some sequences."""
    return FamilyEffect(apply(chunk, settings), _mass(chunk, settings), _excess(chunk, settings))


def _mass(chunk: Chunk, settings: Settings) -> Array:
    if settings.rejects_tokens:
        return chunk.kept_true_ratios(settings)
    return chunk.rows.columns[TrueRatio()].sum[:, None]


def _excess(chunk: Chunk, settings: Settings) -> Array | None:
    """(true ratio - C)+ at the level of the weights; None where nothing is truncated."""
    if not settings.truncates:
        return None
    # True ratios are sorted by clamped ones: the same up to the clamp.
    assert (settings.weight_upper < np.exp(SAFETY_BOUND)).all()
    if settings.weighs_tokens:
        edges, index = np.unique(settings.weight_upper, return_inverse=True)
        return chunk.excess(edges)[:, index]
    true = np.exp(log_ratio(chunk.rows, "sequence"))[:, None]
    return np.maximum(true - settings.weight_upper, 0.0)
