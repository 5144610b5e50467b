"""What ms-swift logs of the two policies and of its weights, on one micro-batch.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, `_compute_rollout_offpolicy_metrics`
and `_compute_is_correction_metrics`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import applied_weights, ratio, weight_quantity
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.guard import SAFETY_BOUND
from rcdiag.corrections.quantities import (
    SUM,
    Beyond,
    K,
    LogRatio,
    Quantity,
    Reduction,
    SquaredRatio,
)
from rcdiag.corrections.reduced import Column
from rcdiag.corrections.trainer_means import EPSILON, Batch

Metrics = dict[str, float]
PREFIX = "rollout_correction/"
K3_BOUND = 10.0  # nats
LOGS = "offpolicy metrics"  # what `Correction.logging` says where they are logged


class BareLogRatio(Struct, frozen=True):
    """The log-ratio as it is, nats: metrics do not clamp it where weights do."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return tokens.raw_log_ratio


class Clamped(Struct, frozen=True):
    """The weight of a token moved into [1 / upper, upper]: that of which the ESS is taken."""

    weights: Quantity
    upper: float

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "squares")

    def of(self, tokens: Tokens) -> Array:
        return np.clip(self.weights.of(tokens), 1.0 / self.upper, self.upper)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    if not correction.logging:
        return []
    needed: list[Quantity] = [BareLogRatio(), K("k3", upper=K3_BOUND), SquaredRatio()]
    if (upper := bound_of(correction)) is None:
        return needed
    assert correction.weighting is not None
    if correction.weighting.by_token:
        weights = weight_quantity(correction)
        needed += [weights, Clamped(weights, upper), Beyond("ratio", upper)]
    return [*needed, LogRatio()]


def bound_of(correction: Correction) -> float | None:
    """Return the upper bound of tokens' or sequences' ratios; None without a mode."""
    if correction.zeroing:
        return correction.zeroing[0].upper
    return None if correction.weighting is None else correction.weighting.upper


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all logged numbers under their keys with prefix; a row without a token counts."""
    if not correction.logging:
        return {}
    logged = _of_policies(batch)
    if (upper := bound_of(correction)) is not None:
        logged |= _of_weights(batch, correction, upper)
    return {PREFIX + name: value for name, value in logged.items()}


def _of_policies(batch: Batch) -> Metrics:
    rows = batch.rows
    training, rollout = rows.target / rows.lengths, rows.behavior / rows.lengths
    difference = rollout - training
    geometric = rows.columns[BareLogRatio()].sum / rows.lengths
    bounded = np.clip(geometric, -SAFETY_BOUND, SAFETY_BOUND)

    def mean(values: NDArray[np.float64], of_none: float = 0.0) -> float:
        return float(batch.padded(values, fill=of_none).mean())

    differences = batch.padded(difference)
    return {
        "training_ppl": mean(np.exp(-training), 1.0),
        "training_log_ppl": mean(-training),
        "kl": float(-rows.columns[BareLogRatio()].sum.sum() / rows.tokens),
        "k3_kl": float(rows.columns[K("k3", upper=K3_BOUND)].sum.sum() / rows.tokens),
        "rollout_ppl": mean(np.exp(-rollout), 1.0),
        "rollout_log_ppl": mean(-rollout),
        "log_ppl_diff": float(differences.mean()),
        "log_ppl_abs_diff": float(np.abs(differences).mean()),
        "log_ppl_diff_max": float(differences.max()),
        "log_ppl_diff_min": float(differences.min()),
        "ppl_ratio": mean(np.exp(difference), 1.0),
        "chi2_token": float(rows.columns[SquaredRatio()].sum.sum() / rows.tokens - 1.0),
        "chi2_seq": mean(np.exp(2.0 * bounded), 1.0) - 1.0,
    }


def _of_weights(batch: Batch, correction: Correction, upper: float) -> Metrics:
    rows, weighting = batch.rows, correction.weighting
    assert weighting is not None
    if weighting.by_token:
        quantity = weight_quantity(correction)
        weights, clamped = rows.columns[quantity], rows.columns[Clamped(quantity, upper)]
    else:
        weights = applied_weights(rows, weighting)
        clamped = Column.of_sequences(np.clip(weights.max, 1.0 / upper, upper), rows.lengths)
    mean = clamped.sum.sum() / rows.tokens
    squares = clamped.squares.sum() / rows.tokens / (mean + EPSILON) ** 2
    if weighting.by_token and not correction.zeroing:
        beyond = rows.columns[Beyond("ratio", upper)].sum.sum() / rows.tokens
    else:
        beyond = batch.padded((ratio(rows, "geometric") > upper).astype(np.float64)).mean()
    return {
        "is_weight_mean": float(weights.sum.sum() / rows.tokens),
        "ess": float(1.0 / np.maximum(squares, 1e-10)),
        "clipped_frac": float(beyond),
    }
