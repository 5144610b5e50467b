"""What OpenRLHF logs of its correction, by generation.

Source: openrlhf 0.11.0 and 0.11.2, openrlhf/models/loss.py (`PolicyLoss`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import SUM, LogRatio, Quantity, Reduction
from rcdiag.corrections.rejections import tokens_kept
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]


class Outside(Struct, frozen=True):
    """1 where no test of the tokens holds: a statistic out of its bounds, or no number."""

    tests: tuple[Rejection, ...]

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return (~tokens_kept(tokens, self.tests)).astype(np.float64)


def _gate_of(correction: Correction) -> Rejection | None:
    """Return the statistic with the bounds that a correction holds it to."""
    if correction.zeroing:
        return correction.zeroing[0]
    weighting = correction.weighting
    return None if weighting is None else Rejection("token", weighting.upper, weighting.lower)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that the metrics read."""
    gate = _gate_of(correction)
    return [] if gate is None else [LogRatio(), Outside((gate,))]


def metrics_of_types(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.0 logs, where it corrects."""
    if correction.weighting is None:
        return {}
    rows = batch.rows
    return {"vllm_kl": float(-rows.columns[LogRatio()].sum.sum() / rows.tokens)}


def metrics_of_gates(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.2 logs, where it corrects; a sequence without a token is outside."""
    logged, gate = metrics_of_types(batch, correction), _gate_of(correction)
    if gate is None:
        return logged
    rows = batch.rows
    outside = rows.columns[Outside((gate,))].sum
    if gate.of_tokens:
        return logged | {"is_filter_ratio": float(outside.sum() / rows.tokens)}
    sequences = batch.padded((outside > 0).astype(np.float64), fill=1.0)
    return logged | {"is_filter_ratio": float(sequences.mean())}
