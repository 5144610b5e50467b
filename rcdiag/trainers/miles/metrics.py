"""miles logs what its functions do to weights, and how far the log-probs of tokens are apart.

Means are over sequences, or over tokens with --calculate-per-token-loss. Sources: miles commit
31f1ca96, miles/backends/training_utils/loss_hub/losses.py (`policy_loss_function`),
corrections.py and math_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import kept_quantity, outcome
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import (
    SUM,
    Array,
    K,
    Kept,
    Quantity,
    Ratio,
    Reduction,
    Tokens,
)
from rcdiag.corrections.trainer_means import Batch
from rcdiag.trainers.slime import mis

Metrics = dict[str, float]
Function = Literal["none", "tis", "icepop", "helper"]


def logging(function: Function, per_token: bool) -> str:
    """Write what decides about the logged numbers, as `Correction.logging` has it."""
    return f"{function} per {'token' if per_token else 'sequence'}"


def _of(correction: Correction) -> tuple[str, bool]:
    """Return the function that made a correction, and whether means are over tokens."""
    function, _, unit = correction.logging.partition(" per ")
    return function, unit == "token"


@dataclass(frozen=True, slots=True)
class FiniteDistance:
    """|old - rollout| log-prob, nats; 0 where that is no finite number."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        values = np.abs(tokens.raw_log_ratio)
        return np.where(np.isfinite(values), values, 0.0)


@dataclass(frozen=True, slots=True)
class LowVarianceKL:
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
    function, _ = _of(correction)
    needed = [kept_quantity(correction.rejections, one) or one for one in _OF_POLICIES.values()]
    if function == "helper":
        return [*needed, *mis.quantities(correction)]
    if function != "none":
        needed += [Ratio(), K("distance"), _within(correction)]
    return needed


def _within(correction: Correction) -> Kept:
    """Return 1 at tokens whose ratio the bounds leave as it is."""
    weighting = correction.weighting
    assert weighting is not None
    return Kept((("ratio", weighting.lower_or_reciprocal, weighting.upper),))


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all numbers of sampler and trainer, under their keys without `train/`."""
    function, per_token = _of(correction)
    mean = mean_of_tokens if per_token else mis.mean_of_rows
    logged = _of_policies(batch, correction, mean)
    if function == "helper":
        return logged | mis.metrics(batch, correction, mean)
    if function == "none":
        return logged
    rows = batch.rows
    of_rows = {
        "tis": rows.columns[Ratio()].sum / rows.lengths,
        "tis_abs": rows.columns[K("distance")].sum / rows.lengths,
        "tis_clipfrac": 1.0 - rows.columns[_within(correction)].sum / rows.lengths,
    }
    return logged | {name: mean(batch, values) for name, values in of_rows.items()}


def mean_of_tokens(batch: Batch, values: NDArray) -> float:
    """Return the mean of means of rows over tokens; a row without a token counts as one."""
    return float((values * batch.rows.lengths).sum() / (batch.rows.tokens + batch.rows.empty))


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
