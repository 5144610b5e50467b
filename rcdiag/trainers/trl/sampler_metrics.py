"""What TRL and Axolotl log of the sampler's log-probs: distances, and weights after their bounds.

Source: trl 1.16.0, trl/trainer/grpo_trainer.py, `_generate_and_score_completions`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.quantities import SUM, Quantity, Reduction, bounded
from rcdiag.corrections.sequences import Rows
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]


class Distance(Struct, frozen=True):
    """|log_ratio| in nats, 0 where the sampler has no log-prob (NaN)."""

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "max")

    def of(self, tokens: Tokens) -> Array:
        distance = np.abs(tokens.raw_log_ratio)
        return np.where(np.isnan(distance), distance.dtype.type(0.0), distance)


class Unknown(Struct, frozen=True):
    """1 where the sampler has no log-prob (NaN)."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.isnan(tokens.raw_log_ratio).astype(np.float64)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    return [] if correction.weighting is None else [Distance(), Unknown()]


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return what TRL logs where it corrects: nothing else of the two policies."""
    return (
        {} if correction.weighting is None else _logged(batch, correction.weighting, [batch.rows])
    )


def metrics_of_responses(batch: Batch, correction: Correction) -> Metrics:
    """Return the same of all tokens of responses, those among them that the mask leaves out."""
    if correction.weighting is None:
        return {}
    masked = [] if batch.rows.masked is None else [batch.rows.masked]
    return _logged(batch, correction.weighting, [batch.rows, *masked])


def _logged(batch: Batch, weighting: Weighting, parts: list[Rows]) -> Metrics:
    """Return distances and weights; the first of the parts are the sampled tokens."""
    distances = [rows.columns[Distance()] for rows in parts]
    unknown = sum(rows.columns[Unknown()].sum.sum() for rows in parts)
    known = sum(rows.tokens for rows in parts) - unknown
    distance = sum(column.sum.sum() for column in distances)
    masked = sum(rows.tokens for rows in parts[1:])
    of_distance, of_ratio = (
        f"sampling/{name}" for name in ("sampling_logp_difference", "importance_sampling_ratio")
    )
    least, mean, largest = _ratios(batch, weighting, masked)
    return {
        f"{of_distance}/mean": float(distance / known) if known else 0.0,
        f"{of_distance}/max": float(max(column.max.max() for column in distances)),
        f"{of_ratio}/min": least,
        f"{of_ratio}/mean": mean,
        f"{of_ratio}/max": largest,
    }


def _ratios(batch: Batch, weighting: Weighting, masked: int) -> tuple[float, float, float]:
    """Return least, mean and largest weight: of tokens, or of sequences in the sequence modes.

    A token that the mask leaves out and a row without a token have ratio 1.
    """
    column, one = applied_weights(batch.rows, weighting), weight_of_one(weighting)
    if not weighting.by_token:
        weights = batch.padded(column.min, fill=one)
        return float(weights.min()), float(weights.mean()), float(weights.max())
    others = [one] * min(masked, 1)
    total, count = column.sum.sum() + one * masked, batch.rows.tokens + masked
    least, largest = min([column.min.min(), *others]), max([column.max.max(), *others])
    return float(least), float(total / count), float(largest)


def weight_of_one(weighting: Weighting) -> float:
    """Return the weight of a ratio of 1."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    return float(bounded(np.ones(1), lower, upper, weighting.outside)[0])
