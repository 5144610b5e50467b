"""What TRL and Axolotl log of the sampler's log-probs: distances, and weights after their bounds.

Source: trl 1.16.0, trl/trainer/grpo_trainer.py, `_generate_and_score_completions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.quantities import SUM, Array, Quantity, Reduction, Tokens, bounded
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Distance:
    """|log_ratio| in nats, 0 where the sampler has no log-prob (NaN)."""

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "max")

    def of(self, tokens: Tokens) -> Array:
        distance = np.abs(tokens.raw_log_ratio)
        return np.where(np.isnan(distance), distance.dtype.type(0.0), distance)


@dataclass(frozen=True, slots=True)
class Unknown:
    """1 where the sampler has no log-prob (NaN)."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.isnan(tokens.raw_log_ratio).astype(np.float64)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    return [] if correction.weighting is None else [Distance(), Unknown()]


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return what TRL logs where it corrects: nothing else of the two policies.

    Where the rows have the tokens that the mask leaves out, which Axolotl asks for, those count.
    """
    if correction.weighting is None:
        return {}
    parts = [batch.rows] if batch.rows.masked is None else [batch.rows, batch.rows.masked]
    distances = [rows.columns[Distance()] for rows in parts]
    unknown = sum(rows.columns[Unknown()].sum.sum() for rows in parts)
    known = sum(rows.tokens for rows in parts) - unknown
    distance = sum(column.sum.sum() for column in distances)
    key = "sampling/sampling_logp_difference"
    return {
        f"{key}/mean": float(distance / known) if known else 0.0,
        f"{key}/max": float(max(column.max.max() for column in distances)),
    } | ratios(batch, correction.weighting)


def ratios(batch: Batch, weighting: Weighting) -> Metrics:
    """Return least, mean and largest weight: of tokens, or of sequences in the sequence modes.

    A token that the mask leaves out and a row without a token have ratio 1.
    """
    column = applied_weights(batch.rows, weighting)
    least, largest = column.min, column.max
    if not weighting.by_token:
        least = largest = batch.padded(column.min, fill=weight_of_one(weighting))
        mean = least.mean()
    else:
        total, count = column.sum.sum(), batch.rows.tokens
        if batch.rows.masked is not None:
            one = weight_of_one(weighting)
            total, count = total + one * batch.rows.masked.tokens, count + batch.rows.masked.tokens
            least, largest = np.append(least, one), np.append(largest, one)
        mean = total / count
    key = "sampling/importance_sampling_ratio"
    return {
        f"{key}/min": float(least.min()),
        f"{key}/mean": float(mean),
        f"{key}/max": float(largest.max()),
    }


def weight_of_one(weighting: Weighting) -> float:
    """Return the weight of a ratio of 1."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    return float(bounded(np.ones(1), lower, upper, weighting.outside)[0])
