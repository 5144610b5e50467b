"""All formulas of log-ratios, of tokens or sequences, with one function each.

Everything is computed from log_ratio and from ratio - 1 = expm1(log_ratio), so that small values
keep their digits. Expectations are over the behavior policy, which sampled;
E_target[f] = E[ratio f].

The sums over tokens are listed in `TOKEN_SUMS`; a metric may add its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.registry import Registry

Array = NDArray[np.float64]

# exp of anything below is 0 in float64; with a finite floor, 0 * log_ratio is 0 and not NaN.
FLOOR = -800.0


class Ratios(Struct, frozen=True, dict=True):
    """log_ratio (target - behavior, nats) and ratio - 1, of tokens or of sequences."""

    log_ratio: Array
    excess: Array

    @cached_property
    def floored(self) -> Array:
        """log_ratio with a finite floor where the ratio is 0, nats."""
        return np.maximum(self.log_ratio, FLOOR)

    @cached_property
    def weighted(self) -> Array:
        """Ratio * log_ratio, nats."""
        return (1.0 + self.excess) * self.floored

    @cached_property
    def size(self) -> Array:
        """|log_ratio|, nats."""
        return np.abs(self.log_ratio)

    @classmethod
    def of(cls, log_ratio: Array) -> Ratios:
        return cls(log_ratio, np.expm1(log_ratio))


def k3(r: Ratios) -> Array:
    """Return ratio - 1 - log_ratio, nats, never negative; its mean is KL(behavior || target).

    Unbiased if E[ratio] = 1. Source: Schulman 2020, http://joschu.net/blog/kl-approx.html
    """
    return r.excess - r.log_ratio


def k2(r: Ratios) -> Array:
    """Return log_ratio^2 / 2, nats, never negative; biased by the third moment. Schulman 2020."""
    return 0.5 * np.square(r.log_ratio)


def k1_reverse(r: Ratios) -> Array:
    """Return ratio * log_ratio, nats; its mean is KL(target || behavior), k1 under the target."""
    return r.weighted


def k2_reverse(r: Ratios) -> Array:
    """Return ratio * log_ratio^2 / 2, nats: k2 under the target policy."""
    return 0.5 * r.weighted * r.floored


def k3_reverse(r: Ratios) -> Array:
    """Return ratio * log_ratio - ratio + 1, nats, never negative: k3 under the target policy.

    The terms are grouped so that an overflowing ratio gives inf instead of inf - inf.
    """
    return r.excess * (r.floored - 1.0) + r.floored


def squared_excess(r: Ratios) -> Array:
    """Return ratio^2 - 1; its mean is chi2(target || behavior)."""
    return r.excess * (r.excess + 2.0)


def shortfall(r: Ratios) -> Array:
    """Return max(1 - ratio, 0), within [0, 1]; its mean is the total variation distance.

    Unlike E|ratio - 1| / 2, this is right even if the behavior policy cannot sample some tokens of
    the target.
    """
    return np.maximum(-r.excess, 0.0)


def root_shortfall(r: Ratios) -> Array:
    """Return 1 - sqrt(ratio); its mean is the squared Hellinger distance, within [0, 1]."""
    return -np.expm1(0.5 * r.log_ratio)


def deviation(r: Ratios) -> Array:
    """Return |ratio - 1|; its mean is the error rate of trust-region masking (2512.23075)."""
    return np.abs(r.excess)


def exp_abs_excess(r: Ratios) -> Array:
    """Return exp(|log_ratio|) - 1: the larger probability over the smaller one, minus 1."""
    return np.expm1(r.size)


RATIO_SUMS: dict[str, Callable[[Ratios], Array]] = {
    "log_ratio": lambda r: r.log_ratio,
    "k2": k2,
    "k3": k3,
    "k1_reverse": k1_reverse,
    "k2_reverse": k2_reverse,
    "k3_reverse": k3_reverse,
    "excess": lambda r: r.excess,
    "squared_excess": squared_excess,
    "shortfall": shortfall,
    "root_shortfall": root_shortfall,
}


# For each bound, the tokens with a ratio outside [1 / bound, bound] are counted.
OUTSIDE = (1.1, 1.5, 2.0, 5.0, 10.0)


class TokenValues(Struct, frozen=True, dict=True):
    """The numbers from which token quantities are computed, each computed once; all [tokens]."""

    behavior: Array  # log-probs, nats
    target: Array  # log-probs, nats
    ratios: Ratios
    # 1 - p instead of p: policies are often near p = 1, where p itself has lost its digits.
    behavior_miss: Array
    target_miss: Array

    @classmethod
    def of(cls, behavior: Array, target: Array, log_ratio: Array) -> TokenValues:
        """Compute the values from log-probs of both policies and their difference, nats."""
        # Ratios that overflow float64 become inf, and inf - inf becomes NaN, as intended.
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = Ratios.of(log_ratio)
        return cls(behavior, target, ratios, -np.expm1(behavior), -np.expm1(target))

    @cached_property
    def prob_diff(self) -> Array:
        """|p_target - p_behavior|."""
        return np.abs(self.target_miss - self.behavior_miss)

    @cached_property
    def undefined(self) -> NDArray[np.bool_] | None:
        """Flags of log-ratios that are NaN; None where there are none."""
        flags = np.isnan(self.ratios.log_ratio)
        return flags if flags.any() else None


def prob_diff(v: TokenValues) -> Array:
    """Return |p_target - p_behavior|."""
    return v.prob_diff


def outside(bound: float, v: TokenValues) -> Array:
    """Return 1 where the ratio is outside [1 / bound, bound], else 0; NaN at NaN."""
    beyond: Array = (v.ratios.size > np.log(bound)).astype(np.float64)
    if v.undefined is not None:
        beyond[v.undefined] = np.nan
    return beyond


def outside_name(bound: float) -> str:
    return f"outside_{bound:g}"


def _of_ratios(formula: Callable[[Ratios], Array], v: TokenValues) -> Array:
    return formula(v.ratios)


class TokenSum(Struct, frozen=True):
    """A quantity of tokens that a pass sums by sequence and by cluster."""

    name: str
    of: Callable[[TokenValues], Array]  # [tokens]
    by_sequence: bool = False  # whether `SequenceTable` keeps the sum of every sequence too


TOKEN_SUMS: Registry[TokenSum] = Registry(
    "token sum",
    [
        TokenSum("behavior", lambda v: v.behavior, by_sequence=True),
        TokenSum("target", lambda v: v.target, by_sequence=True),
        *(
            TokenSum(name, partial(_of_ratios, formula), name == "log_ratio")
            for name, formula in RATIO_SUMS.items()
        ),
        TokenSum("log_ratio_abs", lambda v: v.ratios.size),
        TokenSum("deviation", lambda v: deviation(v.ratios)),
        TokenSum("exp_abs_excess", lambda v: exp_abs_excess(v.ratios)),
        *(TokenSum(outside_name(bound), partial(outside, bound)) for bound in OUTSIDE),
        TokenSum("prob_diff", prob_diff),
        TokenSum("prob_diff_squared", lambda v: np.square(prob_diff(v))),
        TokenSum("behavior_miss", lambda v: v.behavior_miss),
        TokenSum("target_miss", lambda v: v.target_miss),
        TokenSum("behavior_miss_squared", lambda v: np.square(v.behavior_miss)),
        TokenSum("target_miss_squared", lambda v: np.square(v.target_miss)),
        TokenSum("miss_product", lambda v: v.behavior_miss * v.target_miss),
    ],
)

TOKEN_MAXIMA: dict[str, Callable[[TokenValues], Array]] = {
    "log_ratio_abs": lambda v: v.ratios.size,
    "prob_diff": prob_diff,
}
