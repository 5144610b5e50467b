"""What is summed over tokens: an element function each. To add one: one line in `TOKEN_SUMS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rcdiag.pair import PolicyPair
from rcdiag.statistics.ratios import (
    RATIO_SUMS,
    Array,
    Ratios,
    deviation,
    exp_abs_excess,
)

# Ratios outside [1 / bound, bound] are counted.
OUTSIDE = (1.1, 1.5, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What the token quantities are made of, computed once; all [tokens]."""

    behavior: Array  # log-probs, nats
    target: Array  # log-probs, nats
    ratios: Ratios
    # 1 - p, not p: confident policies are near p = 1, where p has lost its digits.
    behavior_miss: Array
    target_miss: Array

    @classmethod
    def of(cls, pair: PolicyPair) -> TokenValues:
        behavior, target = pair.behavior_log_probs, pair.target_log_probs
        # Ratios beyond the range of float64 become inf, which is what they are.
        with np.errstate(over="ignore"):
            ratios = Ratios.of(pair.log_ratio)
        return cls(behavior, target, ratios, -np.expm1(behavior), -np.expm1(target))


def prob_diff(v: TokenValues) -> Array:
    """|p_target - p_behavior|."""
    return np.abs(v.target_miss - v.behavior_miss)


def outside(bound: float, v: TokenValues) -> Array:
    """1 where the ratio is outside [1 / bound, bound]; NaN stays NaN."""
    size = np.abs(v.ratios.log_ratio)
    return np.where(np.isnan(size), size, size > np.log(bound))


def outside_name(bound: float) -> str:
    return f"outside_{bound:g}"


def _of_ratios(formula: Callable[[Ratios], Array], v: TokenValues) -> Array:
    return formula(v.ratios)


TOKEN_SUMS: dict[str, Callable[[TokenValues], Array]] = {
    "behavior": lambda v: v.behavior,
    "target": lambda v: v.target,
    **{name: partial(_of_ratios, formula) for name, formula in RATIO_SUMS.items()},
    "log_ratio_abs": lambda v: np.abs(v.ratios.log_ratio),
    "deviation": lambda v: deviation(v.ratios),
    "exp_abs_excess": lambda v: exp_abs_excess(v.ratios),
    **{outside_name(bound): partial(outside, bound) for bound in OUTSIDE},
    "prob_diff": prob_diff,
    "prob_diff_squared": lambda v: np.square(prob_diff(v)),
    "behavior_miss": lambda v: v.behavior_miss,
    "target_miss": lambda v: v.target_miss,
    "behavior_miss_squared": lambda v: np.square(v.behavior_miss),
    "target_miss_squared": lambda v: np.square(v.target_miss),
    "miss_product": lambda v: v.behavior_miss * v.target_miss,
}

TOKEN_MAXIMA: dict[str, Callable[[TokenValues], Array]] = {
    "log_ratio_abs": lambda v: np.abs(v.ratios.log_ratio),
    "prob_diff": prob_diff,
}
