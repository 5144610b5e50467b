"""Quantities of single tokens, as expressions that a later pass over the tokens evaluates.

Code that needs a sum requests it from the rows of a batch where it uses it: `rows.sum(RATIO > 2.0)`
counts the tokens of each sequence whose ratio is above 2 (`rcdiag.corrections.sequences`). A
quantity is an expression of those defined here, such as `abs(LOG_RATIO)`, or a function of tokens:

    @quantity
    def rises(tokens: Tokens) -> NDArray[np.bool_]:
        return tokens.log_ratio * tokens.advantage > 0

    rows.sum(rises)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import SAFETY_BOUND, Array, T, Tokens, exp
from rcdiag.corrections.correction import Rejection
from rcdiag.corrections.statistics import place_and_statistic, statistic
from rcdiag.table.trajectories import segment_max

Outside = Literal["truncate", "clip", "zero", "mask", "floor"]


class Quantity(Struct, frozen=True):
    """One number per token: a function of the tokens, with its arguments.

    Equal expressions compare equal, so that a pass evaluates them once. Arguments may be
    quantities. Comparisons give 1 or 0; NaN is neither above, below nor within a bound.
    """

    function: Callable[..., NDArray[Any]]
    arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> Quantity:
        """Return the quantity of the same function with these arguments."""
        return Quantity(self.function, arguments)

    def of(self, tokens: Tokens) -> NDArray[Any]:
        """Evaluate the quantity, [tokens]."""
        values = (one.of(tokens) if isinstance(one, Quantity) else one for one in self.arguments)
        return self.function(tokens, *values)

    def __gt__(self, bound: float) -> Quantity:
        return _computed(np.greater, self, bound)

    def __lt__(self, bound: float) -> Quantity:
        return _computed(np.less, self, bound)

    def __sub__(self, other: Quantity) -> Quantity:
        return _computed(np.subtract, self, other)

    def __mul__(self, other: Quantity) -> Quantity:
        return _computed(np.multiply, self, other)

    def __abs__(self) -> Quantity:
        return _computed(np.abs, self)

    def exp(self) -> Quantity:
        return _computed(exp, self)

    def k3(self) -> Quantity:
        """Return exp(x) - 1 - x of the quantity, a log-ratio in nats."""
        return _computed(k3, self)

    def __and__(self, other: Quantity) -> Quantity:
        return _computed(np.logical_and, self, other)

    def __invert__(self) -> Quantity:
        return _computed(np.logical_not, self)

    def within(self, lower: float, upper: float) -> Quantity:
        """Return 1 where the quantity is within the bounds, both included."""
        return _computed(within, self, lower, upper)

    def outside(self, lower: float, upper: float) -> Quantity:
        """Return 1 where the quantity is below or above the bounds; 0 for NaN."""
        return _computed(outside, self, lower, upper)

    def clip(self, lower: float = -np.inf, upper: float = np.inf) -> Quantity:
        """Return the quantity clipped to [lower, upper]."""
        return _computed(np.clip, self, lower, upper)

    def where(self, flags: Quantity, elsewhere: float = 0.0) -> Quantity:
        """Return the quantity where the flags are 1, and a constant elsewhere, even at NaN."""
        return _computed(np.where, flags, self, elsewhere)

    def __str__(self) -> str:
        function, arguments = self.function, self.arguments
        if function is _computed.function:
            function, arguments = arguments[0], arguments[1:]
        name = function.__name__
        return f"{name}({', '.join(map(str, arguments))})" if arguments else name


def quantity(function: Callable[..., NDArray[Any]]) -> Quantity:
    """Turn a function of tokens (and optional arguments) into a quantity.

    If the function `excess` has no further argument, `excess` is the quantity; if it has one,
    `excess(2.0)` is.
    """
    # The path where pickle finds the function; quantities are sent between processes as keys.
    function.__qualname__ += ".function"
    return Quantity(function)


@quantity
def _computed(tokens: Tokens, function: Callable[..., NDArray[Any]], *values: Any) -> NDArray[Any]:
    """Return a function of values of tokens, and of constants."""
    return function(*values)


@quantity
def named(tokens: Tokens, name: str) -> Array:
    """Return the token statistic of this name, such as `k1` or `segment_prob_change`."""
    return statistic(tokens, name)


LOG_RATIO = named("log_ratio")  # nats, unclamped
RATIO = named("ratio")  # exp of the clamped log-ratio


@quantity
def known(tokens: Tokens, values: Array) -> Array:
    """Return the values of tokens, with NaN replaced by 0."""
    return np.where(np.isnan(values), values.dtype.type(0.0), values)


@quantity
def unknown(tokens: Tokens, values: Array) -> NDArray[np.bool_]:
    """Return 1 where values of tokens are NaN."""
    return np.isnan(values)


@quantity
def finite(tokens: Tokens, values: Array) -> NDArray[np.bool_]:
    """Return 1 where values of tokens are finite."""
    result: NDArray[np.bool_] = np.isfinite(values)
    return result


@quantity
def differs(tokens: Tokens, values: Array, others: Array) -> NDArray[np.bool_]:
    """Return 1 where two values differ; NaN differs from everything."""
    result: NDArray[np.bool_] = values != others
    return result


@quantity
def stays(tokens: Tokens, rejections: tuple[Rejection, ...]) -> NDArray[np.bool_]:
    """Return 1 at tokens that rejections by token, segment or sequence keep."""
    return tokens.once(rejections, lambda: tokens_kept(tokens, rejections))


@quantity
def bounded_ratio(
    tokens: Tokens, ratios: Array, lower: float, upper: float, outside: Outside, nan_stays: bool
) -> Array:
    """Return the ratios of tokens, treated outside [lower, upper] as `outside` says."""
    return bounded(ratios, lower, upper, outside, nan_stays=nan_stays)


@quantity
def unclamped_k3(tokens: Tokens) -> Array:
    """Return ratio - 1 - log_ratio without a clamp, nats; trainers log it as k3_kl."""
    if tokens.clamped is tokens.log_ratio and tokens.log_ratio.dtype == np.float64:
        return tokens.k3
    return k3(tokens.log_ratio)


def k3(log_ratio: Array) -> Array:
    """Return ratio - 1 - log_ratio of each log-ratio, nats; in float32 as trainers compute it."""
    if log_ratio.dtype == np.float64:
        return np.expm1(log_ratio) - log_ratio
    return exp(log_ratio) - log_ratio - log_ratio.dtype.type(1.0)


@quantity
def bare_log_ratio(tokens: Tokens) -> Array:
    """Return log_ratio before the guard, nats."""
    return tokens.raw_log_ratio


@quantity
def true_ratio(tokens: Tokens) -> Array:
    """Return the ratio without a clamp, for `actual_numbers`."""
    return tokens.true_ratio


@quantity
def excess(tokens: Tokens, bound: float) -> Array:
    """Return max(ratio - bound, 0) without a clamp: the part that truncation removes."""
    result: Array = np.maximum(tokens.true_ratio - bound, 0.0)
    return result


@quantity
def unsafe(tokens: Tokens) -> NDArray[np.bool_]:
    """Return 1 where |log_ratio| is at or above the safety bound."""
    return np.abs(tokens.raw_log_ratio) >= SAFETY_BOUND


@quantity
def log_prob(tokens: Tokens, side: Literal["behavior", "target"]) -> Array:
    """Return the log-prob of each token under one policy, nats."""
    return tokens.behavior if side == "behavior" else tokens.target


def bounded(
    ratio: NDArray[T],
    lower: float | NDArray[np.float64],
    upper: float | NDArray[np.float64],
    outside: Outside,
    *,
    nan_stays: bool = False,
) -> NDArray[T]:
    """Return weights from ratios of tokens or sequences, by their treatment outside the bounds.

    `truncate`: min(ratio, upper). `clip`: clipped to [lower, upper]. `zero`: 0 outside, and at NaN
    unless `nan_stays`. `mask`: the ratio unchanged. `floor`: the lower bound on either side. Bounds
    may be arrays that broadcast, with one column per setting.
    """
    if outside == "truncate":
        result: NDArray[T] = np.minimum(ratio, upper)
        return result
    if outside == "clip":
        return np.clip(ratio, lower, upper)
    if outside == "mask":
        return ratio
    keep = within(ratio, lower, upper)
    if nan_stays:
        keep |= np.isnan(ratio)
    return np.where(keep, ratio, ratio.dtype.type(0.0) if outside == "zero" else lower)


def within(values: Array, lower: float | Array, upper: float | Array) -> NDArray[np.bool_]:
    """Tell where values are within the bounds, both included; False at NaN."""
    with np.errstate(invalid="ignore"):
        return (values >= lower) & (values <= upper)


def outside(values: Array, lower: float, upper: float) -> NDArray[np.bool_]:
    """Tell where values are below or above the bounds; False at NaN."""
    with np.errstate(invalid="ignore"):
        return (values < lower) | (values > upper)


def tokens_kept(tokens: Tokens, rejections: Sequence[Rejection]) -> NDArray[np.bool_]:
    """Tell which tokens rejections by token, segment or sequence keep, [tokens]."""
    keep = np.ones(len(tokens.raw_log_ratio), np.bool_)
    for rejection in rejections:
        keep &= within(_tested(tokens, rejection), rejection.least, rejection.upper)
    return keep


def _tested(tokens: Tokens, rejection: Rejection) -> Array:
    """Return the statistic of a rejection at each token, [tokens]."""
    if rejection.of_tokens:
        return statistic(tokens, rejection.of_each_token)
    keep, counts = tokens_kept(tokens, rejection.over), tokens.lengths.astype(np.float64)
    if rejection.over:
        counts = np.maximum(tokens.row_sum(keep.astype(np.float64)), 1.0)
    if rejection.of_ratio:
        sums = tokens.row_sum(np.where(keep, tokens.log_ratio, 0.0))
        logs = sums if rejection.statistic == "sequence" else sums / counts
        return tokens.on_tokens(tokens.guard.exp(logs))
    place, name = place_and_statistic(rejection.statistic)
    values = statistic(tokens, name)
    if place in ("seq_max", "seq_min"):
        sign = 1.0 if place == "seq_max" else -1.0
        turned = np.where(keep, sign * values, -np.inf).astype(np.float64, copy=False)
        return tokens.on_tokens(sign * segment_max(turned, tokens.lengths))
    sums = tokens.row_sum(np.where(keep, values, 0.0))
    return tokens.on_tokens(sums if place == "seq_sum" else sums / counts)
