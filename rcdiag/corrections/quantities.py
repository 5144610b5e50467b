"""Corrections read quantities of single tokens: functions of the log-ratio, hashable by value.

Trainers clamp log-ratios to +-20 before exp; `ratio` here is that of the clamped log-ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
T = TypeVar("T", bound=np.floating)

SAFETY_BOUND = 20.0

Outside = Literal["truncate", "clip", "zero", "mask"]


class Tokens:
    """Log-ratios of tokens in the arithmetic of the trainer, and what is made of them, once."""

    def __init__(self, log_ratio: Array) -> None:
        self.log_ratio = log_ratio

    @cached_property
    def clamped(self) -> Array:
        return np.clip(self.log_ratio, -SAFETY_BOUND, SAFETY_BOUND)

    @cached_property
    def ratio(self) -> Array:
        return np.exp(self.clamped)

    def k(self, which: str) -> Array:
        """Return k1 = -log_ratio, k2 = log_ratio^2 / 2 or k3 = ratio - 1 - log_ratio, nats."""
        if which == "k1":
            return -self.clamped
        return 0.5 * np.square(self.clamped) if which == "k2" else self._k3

    @cached_property
    def _k3(self) -> Array:
        if self.clamped.dtype == np.float64:
            return np.expm1(self.clamped) - self.clamped
        # Trainers write it so, and lose digits in their arithmetic.
        return self.ratio - self.clamped.dtype.type(1.0) - self.clamped


Reduction = Literal["sum", "squares", "max", "min"]
SUM: tuple[Reduction, ...] = ("sum",)


class Quantity(Protocol):
    """A number per token, and the reductions of it that a pass keeps by sequence."""

    @property
    def keeps(self) -> tuple[Reduction, ...]: ...

    def of(self, tokens: Tokens) -> Array: ...


@dataclass(frozen=True, slots=True)
class LogRatio:
    """The log-ratio, unclamped."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return tokens.log_ratio


@dataclass(frozen=True, slots=True)
class UnclampedK3:
    """ratio - 1 - log_ratio without the clamp, nats; trainers log it as k3_kl."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        if tokens.log_ratio.dtype == np.float64:
            return np.expm1(tokens.log_ratio) - tokens.log_ratio
        return np.exp(tokens.log_ratio) - tokens.log_ratio - tokens.log_ratio.dtype.type(1.0)


@dataclass(frozen=True, slots=True)
class SquaredRatio:
    """Square of the ratio."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.square(tokens.ratio)


@dataclass(frozen=True, slots=True)
class K:
    """k1, k2 or k3, kept within [lower, upper] where bounds are given."""

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
        values = tokens.k(self.which)
        if self._unbounded:
            return values
        return np.clip(values, self.lower, self.upper)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio, and what becomes of it outside [lower, upper]; by default nothing."""

    lower: float = 0.0
    upper: float = np.inf
    outside: Outside = "clip"
    nan_stays: bool = False

    keeps: ClassVar[tuple[Reduction, ...]] = ("sum", "squares", "max", "min")

    def of(self, tokens: Tokens) -> Array:
        ratio = tokens.ratio
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
    outside (a NaN too, unless it stays), `mask` leaves the ratio as it is. Bounds may be arrays
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
    return np.where(keep, ratio, ratio.dtype.type(0.0))


@dataclass(frozen=True, slots=True)
class Beyond:
    """1 where a statistic is above (or, with `below`, under) a bound; NaN is not."""

    statistic: str  # ratio, log_ratio, k1, k2, k3
    bound: float
    below: bool = False

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        values = statistic(tokens, self.statistic)
        with np.errstate(invalid="ignore"):
            return (values < self.bound if self.below else values > self.bound).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Kept:
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


@dataclass(frozen=True, slots=True)
class TrueRatio:
    """The ratio without any clamp, which the honest numbers read."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(tokens.log_ratio.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Unsafe:
    """1 where the log-ratio is at the safety bound or beyond."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return (np.abs(tokens.log_ratio) >= SAFETY_BOUND).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Excess:
    """(ratio - bound)+ without any clamp: the part that truncation takes away."""

    bound: float

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.maximum(TrueRatio().of(tokens) - self.bound, 0.0)


def statistic(tokens: Tokens, name: str) -> Array:
    """Return a statistic of tokens by its name."""
    if name == "ratio":
        return tokens.ratio
    return tokens.log_ratio if name == "log_ratio" else tokens.k(name)


def within(values: Array, lower: float | Array, upper: float | Array) -> NDArray[np.bool_]:
    """Tell where values lie within bounds, both included; NaN is outside."""
    with np.errstate(invalid="ignore"):
        return (values >= lower) & (values <= upper)
