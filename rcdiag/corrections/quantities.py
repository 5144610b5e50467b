"""Corrections read quantities of single tokens: functions of the log-ratio, hashable by value."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Level, Rejection
from rcdiag.corrections.exponentials import exp
from rcdiag.corrections.guard import SAFETY_BOUND, UNSAID, Guard, T
from rcdiag.corrections.rejections import tokens_kept, within
from rcdiag.corrections.statistics import statistic

Outside = Literal["truncate", "clip", "zero", "mask", "floor"]

# `values` keeps every token's value: 8 bytes for each token of the table.
Reduction = Literal["sum", "squares", "max", "min", "values"]
SUM: tuple[Reduction, ...] = ("sum",)


class Quantity(Protocol):
    """A number per token, and the reductions of it that a pass keeps by sequence."""

    @property
    def keeps(self) -> tuple[Reduction, ...]: ...

    def of(self, tokens: Tokens) -> Array: ...


class LogRatio(Struct, frozen=True):
    """The log-ratio, unclamped."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return tokens.log_ratio


class EveryLogProb(Struct, frozen=True):
    """The log-prob of every token under one policy, for statistics of the whole batch."""

    side: Literal["behavior", "target"]

    keeps: ClassVar[tuple[Reduction, ...]] = ("values",)

    def of(self, tokens: Tokens) -> Array:
        return tokens.behavior if self.side == "behavior" else tokens.target


class UnclampedK3(Struct, frozen=True):
    """ratio - 1 - log_ratio without the clamp, nats; trainers log it as k3_kl."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        if tokens.log_ratio.dtype == np.float64:
            if tokens.clamped is tokens.log_ratio:
                return tokens.k3
            return np.expm1(tokens.log_ratio) - tokens.log_ratio
        return exp(tokens.log_ratio) - tokens.log_ratio - tokens.log_ratio.dtype.type(1.0)


class SquaredRatio(Struct, frozen=True):
    """Square of the ratio."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.square(tokens.ratio)


class K(Struct, frozen=True):
    """A statistic such as k1, k2 or k3, kept within [lower, upper] where bounds are given."""

    which: str
    lower: float = -np.inf
    upper: float = np.inf

    @property
    def keeps(self) -> tuple[Reduction, ...]:
        return ("sum", "max", "min") if self._unbounded else ("sum", "squares")

    @property
    def _unbounded(self) -> bool:
        return bool(np.isinf(self.lower) and np.isinf(self.upper))

    def of(self, tokens: Tokens) -> Array:
        values = statistic(tokens, self.which)
        if self._unbounded:
            return values
        return np.clip(values, self.lower, self.upper)


class Ratio(Struct, frozen=True):
    """The ratio, and what becomes of it outside [lower, upper]; by default nothing."""

    lower: float = 0.0
    upper: float = np.inf
    outside: Outside = "clip"
    nan_stays: bool = False
    level: Level = "token"  # or segment

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "squares", "max", "min")

    def of(self, tokens: Tokens) -> Array:
        ratio = tokens.ratio if self.level == "token" else statistic(tokens, "segment")
        if self.lower == 0.0 and np.isinf(self.upper):
            return ratio
        return bounded(ratio, self.lower, self.upper, self.outside, nan_stays=self.nan_stays)


def bounded(
    ratio: NDArray[T],
    lower: float | NDArray[np.float64],
    upper: float | NDArray[np.float64],
    outside: Outside,
    *,
    nan_stays: bool = False,
) -> NDArray[T]:
    """Make weights from ratios of tokens or sequences, treated outside [lower, upper].

    `truncate` gives min(ratio, upper), `clip` moves the ratio into the bounds, `zero` gives 0
    outside (a NaN too, unless it stays), `mask` leaves the ratio as it is, `floor` gives the lower
    bound outside. Bounds may be arrays
    that broadcast: one column for every setting.
    """
    if outside == "truncate":
        return np.minimum(ratio, upper)
    if outside == "clip":
        return np.clip(ratio, lower, upper)
    if outside == "mask":
        return ratio
    keep = within(ratio, lower, upper)
    if nan_stays:
        keep |= np.isnan(ratio)
    return np.where(keep, ratio, ratio.dtype.type(0.0) if outside == "zero" else lower)


class Beyond(Struct, frozen=True):
    """1 where a statistic is above (or, with `below`, under) a bound; NaN is not."""

    statistic: str  # a name of `rcdiag.corrections.statistics`
    bound: float
    below: bool = False

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        values = statistic(tokens, self.statistic)
        with np.errstate(invalid="ignore"):
            return (values < self.bound if self.below else values > self.bound).astype(np.float64)


class Kept(Struct, frozen=True):
    """`quantity` (or 1) where all of the token bounds hold, else 0. A NaN never holds."""

    bounds: tuple[tuple[str, float, float], ...]  # statistic, lower, upper
    quantity: Quantity | None = None

    @property
    def keeps(self) -> tuple[Reduction, ...]:
        return SUM if self.quantity is None else ("sum", "squares")

    def of(self, tokens: Tokens) -> Array:
        keep = np.ones(len(tokens.log_ratio), np.bool_)
        for name, lower, upper in self.bounds:
            keep &= within(statistic(tokens, name), lower, upper)
        values = 1.0 if self.quantity is None else self.quantity.of(tokens)
        return np.where(keep, values, 0.0)


class Within(Struct, frozen=True):
    """`quantity` (or 1) at tokens that rejections of any kind leave, else 0 or `elsewhere`."""

    over: tuple[Rejection, ...]
    quantity: Quantity | None = None
    elsewhere: float = 0.0

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "squares", "max", "min")

    def of(self, tokens: Tokens) -> Array:
        values = 1.0 if self.quantity is None else self.quantity.of(tokens)
        return np.where(tokens_kept(tokens, self.over), values, self.elsewhere)


class Guarded(Struct, frozen=True):
    """A quantity of the tokens under a guard of its own."""

    guard: Guard
    quantity: Quantity

    @property
    def keeps(self) -> tuple[Reduction, ...]:
        return self.quantity.keeps

    def of(self, tokens: Tokens) -> Array:
        return self.quantity.of(tokens.under(self.guard))


class InFloat32(Struct, frozen=True):
    """A quantity of the tokens in float32, in which trainers compute."""

    quantity: Quantity

    @property
    def keeps(self) -> tuple[Reduction, ...]:
        """Of weights nobody reads the largest and the smallest in float32."""
        own = self.quantity
        of_weights = isinstance(own.quantity if isinstance(own, Guarded) else own, Ratio)
        return ("sum", "squares") if of_weights else own.keeps

    def of(self, tokens: Tokens) -> Array:
        return self.quantity.of(tokens.in_float32)


def under(guard: Guard, quantity: Quantity) -> Quantity:
    """Return a quantity as it is under a guard; the one that is not said needs no wrapping."""
    return quantity if guard == UNSAID else Guarded(guard, quantity)


class TrueRatio(Struct, frozen=True):
    """The ratio without any clamp, which the honest numbers read."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return tokens.true_ratio


class Unsafe(Struct, frozen=True):
    """1 where the log-ratio is at the safety bound or beyond."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return (np.abs(tokens.raw_log_ratio) >= SAFETY_BOUND).astype(np.float64)


class Excess(Struct, frozen=True):
    """(ratio - bound)+ without any clamp: the part that truncation takes away."""

    bound: float

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.maximum(tokens.true_ratio - self.bound, 0.0)
