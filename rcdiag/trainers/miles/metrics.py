"""miles logs what its functions do to weights, and how far the log-probs of tokens are apart.

Means are over sequences, or over tokens with --calculate-per-token-loss. Sources: miles commit
31f1ca96, miles/backends/training_utils/loss_hub/losses.py (`policy_loss_function`),
corrections.py and math_utils.py.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from rcdiag.corrections.apply import kept_quantity, outcome
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import SUM, Quantity, Reduction
from rcdiag.corrections.trainer_means import Batch
from rcdiag.trainers.slime import mis
from rcdiag.trainers.slime.built_in import mean_of, ratio_metrics, ratio_quantities
from rcdiag.trainers.slime.chosen_by_flags import logged_of
from rcdiag.trainers.trainer import Metrics


class FiniteDistance(Struct, frozen=True):
    """|old - rollout| log-prob, nats; 0 where that is no finite number."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        values = np.abs(tokens.raw_log_ratio)
        return np.where(np.isfinite(values), values, 0.0)


class LowVarianceKL(Struct, frozen=True):
    """ratio - log_ratio - 1, nats, at most 10; the log-ratio is 0 for NaN, and within +-20."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        raw = tokens.raw_log_ratio
        held = np.clip(np.where(np.isnan(raw), 0.0, raw), -20.0, 20.0)
        return np.minimum(np.expm1(held) - held, 10.0)


_OF_POLICIES: dict[str, Quantity] = {
    "train_rollout_logprob_abs_diff": FiniteDistance(),
    "train_rollout_kl": LowVarianceKL(),
}


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    function, _ = logged_of(correction)
    needed = [kept_quantity(correction.rejections, one) or one for one in _OF_POLICIES.values()]
    if function == "helper":
        return [*needed, *mis.quantities(correction)]
    return needed if function == "none" else [*needed, *ratio_quantities(correction)]


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all numbers of sampler and trainer, under their keys without `train/`."""
    function, per_token = logged_of(correction)
    mean = mean_of(per_token)
    logged = _of_policies(batch, correction, mean)
    if function == "helper":
        return logged | mis.metrics(batch, correction, mean)
    return logged if function == "none" else logged | ratio_metrics(batch, correction, mean)


def _of_policies(batch: Batch, correction: Correction, mean: mis.Mean) -> Metrics:
    """Return what sums over tokens that are kept and divides by all; 0 if rollout is old."""
    if correction.mode == "bypass":
        return dict.fromkeys(_OF_POLICIES, 0.0)
    rows, kept = batch.rows, outcome(batch.rows, correction).kept
    sums = {
        name: rows.columns[kept_quantity(correction.rejections, one) or one].sum
        for name, one in _OF_POLICIES.items()
    }
    return {
        name: mean(batch, np.where(kept > 0, values, 0.0) / rows.lengths)
        for name, values in sums.items()
    }
