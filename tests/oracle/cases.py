"""Stored cases, made from results of a trainer's own code on a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.trainers.answers import Corrected, Settings, Updated
from tests.trainers.batches import BATCHES


def corrected_case(
    batch: str,
    settings: Settings,
    dtype: str,
    weights: Any,
    metrics: Mapping[str, Any],
    kept: Any = None,
) -> Corrected:
    """Make a case from weights before rejection and the mask after it, [rows, longest].

    Without weights these are None; a trainer that rejects nothing leaves the mask out.
    """
    mask = BATCHES[batch].mask
    left = mask if kept is None else np.asarray(kept) > 0
    total = None
    if weights is not None:
        total = float(np.broadcast_to(np.asarray(weights, np.float64), mask.shape)[mask].sum())
    return Corrected(
        batch=batch,
        settings=settings,
        arithmetic=dtype,
        weight_sum=total,
        kept_tokens=int(left.sum()),
        kept_sequences=int(left.any(axis=1).sum()),
        metrics={name: float(value) for name, value in metrics.items()},
    )


def updated_case(
    batch: str, settings: Settings, loss: Any, gradient: Any, metrics: Mapping[str, Any]
) -> Updated:
    """Make a case from a loss and its gradient by current log-probs, [rows, longest]."""
    of_tokens = np.asarray(gradient)[BATCHES[batch].mask]
    return Updated(
        batch=batch,
        settings=settings,
        loss=loss.item(),
        metrics={name: float(value) for name, value in metrics.items()},
        gradient=[float(each) for each in of_tokens],
    )
