"""OpenRLHF's metrics of its correction, by generation.

Source: openrlhf 0.11.0 and 0.11.2, openrlhf/models/loss.py (`PolicyLoss`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import LOG_RATIO, stays
from rcdiag.corrections.trainer_means import Batch, Metrics


def metrics_of_types(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.0 logs if it corrects."""
    if correction.weighting is None:
        return {}
    rows = batch.rows
    return {"vllm_kl": float(-rows.sum(LOG_RATIO).sum() / rows.tokens)}


def metrics_of_gates(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.2 logs if it corrects; a sequence without a token counts as filtered."""
    logged, weighting = metrics_of_types(batch, correction), correction.weighting
    if correction.zeroing:
        gate = correction.zeroing[0]
    elif weighting is not None:
        gate = Rejection("token", weighting.upper, weighting.lower)
    else:
        return logged
    rows = batch.rows
    outside = rows.sum(~stays((gate,)))
    if gate.of_tokens:
        return logged | {"is_filter_ratio": float(outside.sum() / rows.tokens)}
    sequences = batch.padded((outside > 0).astype(np.float64), fill=1.0)
    return logged | {"is_filter_ratio": float(sequences.mean())}
