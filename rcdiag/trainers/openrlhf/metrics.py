"""What OpenRLHF logs of its correction, by generation.

Source: openrlhf 0.11.0 and 0.11.2, openrlhf/models/loss.py (`PolicyLoss`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import LOG_RATIO, stays
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]


def _gate_of(correction: Correction) -> Rejection | None:
    """Return the statistic with the bounds that a correction holds it to."""
    if correction.zeroing:
        return correction.zeroing[0]
    weighting = correction.weighting
    return None if weighting is None else Rejection("token", weighting.upper, weighting.lower)


def metrics_of_types(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.0 logs, where it corrects."""
    if correction.weighting is None:
        return {}
    rows = batch.rows
    return {"vllm_kl": float(-rows.sum(LOG_RATIO).sum() / rows.tokens)}


def metrics_of_gates(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.2 logs, where it corrects; a sequence without a token is outside."""
    logged, gate = metrics_of_types(batch, correction), _gate_of(correction)
    if gate is None:
        return logged
    rows = batch.rows
    outside = rows.sum(~stays((gate,)))
    if gate.of_tokens:
        return logged | {"is_filter_ratio": float(outside.sum() / rows.tokens)}
    sequences = batch.padded((outside > 0).astype(np.float64), fill=1.0)
    return logged | {"is_filter_ratio": float(sequences.mean())}
