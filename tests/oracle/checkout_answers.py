"""Results of a trainer's own code for one batch and one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.trainers.checkout_batches import Batch

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Weights, the mask that rejection leaves, and logged numbers; arrays are [rows, longest]."""

    weights: np.ndarray | None  # None without weights
    kept: np.ndarray
    metrics: dict[str, float]


def numbers_of(answer: Answer, batch: Batch) -> Numbers:
    """Return the stored part of an answer: sums over unmasked tokens, and metrics."""
    mask = batch.grid(batch.mask) > 0
    kept = mask & (answer.kept > 0)
    weights = answer.weights
    return {
        "weight_sum": None if weights is None else float(weights[mask].sum()),
        "kept_tokens": int(kept.sum()),
        "kept_sequences": int(kept.any(axis=1).sum()),
        "metrics": answer.metrics,
    }


@dataclass(frozen=True, slots=True)
class LossAnswer:
    """The loss of one update, its gradient by log-prob [rows, longest], and logged numbers."""

    loss: float
    gradient: np.ndarray
    metrics: dict[str, float]


def loss_numbers_of(answer: LossAnswer, batch: Batch) -> Numbers:
    """Return the stored part of a loss: the gradient at unmasked tokens, in row order."""
    return {
        "loss": answer.loss,
        "gradient": answer.gradient[batch.grid(batch.mask) > 0].tolist(),
        "metrics": answer.metrics,
    }
