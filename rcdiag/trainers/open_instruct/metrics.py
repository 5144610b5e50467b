"""open-instruct logs how far the two log-probs are apart, and what rho's clamp and mask did.

Means are over the tokens of all packs; here the table is one pack. Sources: open-instruct commit
e6c3044a, open_instruct/grpo_utils.py (`compute_vllm_local_debug_metrics`,
`compute_rho_correction`, `create_loss_stats`) and open_instruct/rl_utils.py (`masked_mean`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from rcdiag.corrections.apply import outcome, raw_weights
from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.exponentials import exp
from rcdiag.corrections.quantities import SUM, Quantity, Ratio, Reduction, Within, bounded
from rcdiag.corrections.trainer_means import Batch

Metrics = dict[str, float]
_RHO = ("drop_frac", "drop_low_frac", "drop_high_frac", "weight", "clipfrac")


class LogProbDistance(Struct, frozen=True):
    """|old - rollout| log-prob, before any clamp, nats."""

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "squares", "max")

    def of(self, tokens: Tokens) -> Array:
        return np.abs(tokens.target - tokens.behavior)


class WeighedDifference(Struct, frozen=True):
    """exp(rollout) (rollout - old), which open-instruct calls a reverse KL, nats."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return exp(tokens.behavior) * (tokens.behavior - tokens.target)


class Clamped(Struct, frozen=True):
    """1 where a clamp to [lower, upper] changes the ratio."""

    lower: float
    upper: float

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        changed = tokens.ratio != bounded(tokens.ratio, self.lower, self.upper, "clip")
        return changed.astype(np.float64)


def _clamped(weighting: Weighting) -> Clamped:
    return Clamped(weighting.lower_or_reciprocal, weighting.upper)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    needed: list[Quantity] = [LogProbDistance(), WeighedDifference()]
    if correction.weighting is not None:
        needed += [Ratio(), _clamped(correction.weighting), Within(correction.zeroing)]
        needed += [Within((test,)) for test in correction.zeroing]
    return needed


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all logged numbers; without the correction those of rho are logged as 0."""
    logged = _distances(batch) | dict.fromkeys((f"val/rho_{name}" for name in _RHO), 0.0)
    if correction.weighting is not None:
        logged |= _rho(batch, correction, correction.weighting)
    return logged


def _distances(batch: Batch) -> Metrics:
    rows, count = batch.rows, batch.rows.tokens
    distance = rows.columns[LogProbDistance()]
    mean = distance.sum.sum() / count
    spread = max(distance.squares.sum() - count * mean**2, 0.0)
    return {
        "debug/vllm_vs_local_logprob_diff_mean": float(mean),
        "debug/vllm_vs_local_logprob_diff_max": float(distance.max.max()),
        "debug/vllm_vs_local_logprob_diff_std": (
            float(np.sqrt(spread / (count - 1))) if count > 1 else 0.0
        ),
        "debug/vllm_local_reverse_kl": float(rows.columns[WeighedDifference()].sum.sum() / count),
    }


def _rho(batch: Batch, correction: Correction, weighting: Weighting) -> Metrics:
    rows, count = batch.rows, batch.rows.tokens
    weights = outcome(rows, correction).weights
    assert weights is not None
    if weighting.by_token:
        clipped = rows.columns[_clamped(weighting)].sum.sum()
    else:
        ratios = raw_weights(rows, weighting).max
        low, high = weighting.lower_or_reciprocal, weighting.upper
        clipped = rows.lengths[ratios != bounded(ratios, low, high, "clip")].sum()
    dropped = {
        "low" if test.lower is not None else "high": count - rows.columns[Within((test,))].sum.sum()
        for test in correction.zeroing
    }
    return {
        "val/rho_drop_frac": float(
            1.0 - rows.columns[Within(correction.zeroing)].sum.sum() / count
        ),
        "val/rho_drop_low_frac": float(dropped.get("low", 0.0) / count),
        "val/rho_drop_high_frac": float(dropped.get("high", 0.0) / count),
        "val/rho_weight": float(weights.sum.sum() / count),
        "val/rho_clipfrac": float(clipped / count),
    }
