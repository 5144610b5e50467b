"""TRL's and Axolotl's metrics: distances from the sampler's log-probs, and bounded weights.

Source: trl 1.16.0, trl/trainer/grpo_trainer.py, `_generate_and_score_completions`.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.quantities import bare_log_ratio, bounded, known, unknown
from rcdiag.corrections.sequences import Sequences
from rcdiag.corrections.trainer_means import Batch, Metrics


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return what TRL logs if it corrects: nothing else about the two policies."""
    return (
        {} if correction.weighting is None else _logged(batch, correction.weighting, [batch.rows])
    )


def metrics_of_responses(batch: Batch, correction: Correction) -> Metrics:
    """Return the same over all response tokens, including those that the mask leaves out."""
    if correction.weighting is None:
        return {}
    masked = [] if batch.rows.masked is None else [batch.rows.masked]
    return _logged(batch, correction.weighting, [batch.rows, *masked])


def _logged(batch: Batch, weighting: Weighting, parts: list[Sequences]) -> Metrics:
    """Return distances and weights; the first of `parts` holds the sampled tokens."""
    distance = known(abs(bare_log_ratio))  # 0 if the sampler has no log-prob
    total = sum(rows.sum(distance).sum() for rows in parts)
    count = sum(rows.tokens - rows.sum(unknown(bare_log_ratio)).sum() for rows in parts)
    masked = sum(rows.tokens for rows in parts[1:])
    of_distance, of_ratio = (
        f"sampling/{name}" for name in ("sampling_logp_difference", "importance_sampling_ratio")
    )
    least, mean, largest = _ratios(batch, weighting, masked)
    return {
        f"{of_distance}/mean": float(total / count) if count else 0.0,
        f"{of_distance}/max": float(max(rows.max(distance).max() for rows in parts)),
        f"{of_ratio}/min": least,
        f"{of_ratio}/mean": mean,
        f"{of_ratio}/max": largest,
    }


def _ratios(batch: Batch, weighting: Weighting, masked: int) -> tuple[float, float, float]:
    """Return minimum, mean and maximum weight: of tokens, or of sequences in the sequence modes.

    A masked token, and a row without a token, have ratio 1.
    """
    rows, one = batch.rows, weight_of_one(weighting)
    weights = applied_weights(rows, weighting)
    if not weighting.by_token:
        padded = batch.padded(rows.min(weights), fill=one)
        return float(padded.min()), float(padded.mean()), float(padded.max())
    others = [one] * min(masked, 1)
    total, count = rows.sum(weights).sum() + one * masked, rows.tokens + masked
    least = min([rows.min(weights).min(), *others])
    largest = max([rows.max(weights).max(), *others])
    return float(least), float(total / count), float(largest)


def weight_of_one(weighting: Weighting) -> float:
    """Return the weight of a ratio of 1."""
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    return float(bounded(np.ones(1), lower, upper, weighting.outside)[0])
