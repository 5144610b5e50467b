"""Ratios and statistics of tokens from log-ratios, in a trainer's arithmetic and with its clamps.

Trainers clamp log-ratios before exp, most of them to +-20 nats; `ratio` is computed after that.

exp and log in float32 are rounded as in torch, which trainers use. For two million log-probs
between -16 and -1e-6, numpy's float32 exp differs from that of torch 2.13 on a CPU at 48%, while
float64 exp rounded to float32 differs at 0.7%. The last digit matters where a trainer subtracts
numbers near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.trajectories import segment_sum

Array = NDArray[np.floating]
T = TypeVar("T", bound=np.floating)

# Nats: log-ratios are clamped to +-20 before exp, as in verl and slime, unless a trainer differs.
SAFETY_BOUND = 20.0


def exp(logs: NDArray[T]) -> NDArray[T]:
    """Return exp of each number, in the arithmetic of its dtype."""
    return _rounded(np.exp, logs)


def log(numbers: NDArray[T]) -> NDArray[T]:
    """Return the natural logarithm of each number, in the arithmetic of its dtype."""
    return _rounded(np.log, numbers)


def _rounded(function: Callable[..., Any], values: NDArray[T]) -> NDArray[T]:
    result: NDArray[T]
    if values.dtype != np.float32:
        result = function(values)
        return result
    with np.errstate(over="ignore"):
        result = function(values.astype(np.float64)).astype(values.dtype)
    return result


class Guard(Struct, frozen=True):
    """How a trainer clamps and repairs log-ratios before it takes exp of them or of their sums."""

    bound: float = SAFETY_BOUND  # nats; log-ratios are clamped to +-bound; inf: no clamp
    before_sums: bool = False  # the clamp acts on tokens before they are summed or averaged
    # What a NaN or infinite value becomes. `stays`: unchanged; `equal`: log-ratio 0; `nan_equal`:
    # log-ratio 0, for NaN only; `zero`: ratio 0.
    non_finite: Literal["stays", "equal", "nan_equal", "zero"] = "stays"
    epsilon: float = 1e-8  # added to token counts before dividing by them
    nan_log_prob: float | None = None  # replaces a log-prob that is NaN

    def exp(self, logs: NDArray[T]) -> NDArray[T]:
        """Return exp of log-ratios, after clamping them to the bound."""
        bounded = logs if np.isinf(self.bound) else np.clip(logs, -self.bound, self.bound)
        return self.finite(exp(bounded))

    def finite(self, ratio: NDArray[T]) -> NDArray[T]:
        """Set ratios that are not finite to 0, if the guard says so."""
        if self.non_finite != "zero":
            return ratio
        return np.where(np.isfinite(ratio), ratio, ratio.dtype.type(0.0))


DEFAULT_GUARD = Guard()


class Tokens(Struct, dict=True, eq=False):
    """Log-ratios of tokens in the trainer's arithmetic; values computed from them are cached.

    Some statistics need more than the log-ratio: both log-probs, the sequences of the tokens, and
    the turn and advantage of each token.
    """

    raw_log_ratio: Array  # before the guard
    recorded_behavior: Array | None = None  # log-probs, before the guard
    recorded_target: Array | None = None
    row_lengths: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None
    known_advantage: Array | None = None
    guard: Guard = DEFAULT_GUARD

    @classmethod
    def of(cls, pair: PolicyPair, dtype: type[np.floating] = np.float64) -> Tokens:
        """Return the tokens of a pair, with log-probs rounded to the trainer's arithmetic."""
        batch = pair.tokens
        with np.errstate(over="ignore", invalid="ignore"):  # inf - inf is NaN
            behavior, target = (
                batch.log_probs[policy].astype(dtype, copy=False)
                for policy in (pair.behavior, pair.target)
            )
            log_ratio = target - behavior
        advantage = batch.advantages
        if advantage is None and batch.advantage is not None:
            advantage = np.repeat(batch.advantage, batch.lengths)
        return cls(log_ratio, behavior, target, batch.lengths, batch.turn, advantage)

    @cached_property
    def _guarded(self) -> dict[Guard, Tokens]:
        """Copies under other guards; never self, which would keep the tokens after the batch."""
        return {}

    @cached_property
    def _computed(self) -> dict[Hashable, Any]:
        return {}

    def under(self, guard: Guard) -> Tokens:
        """Return the same tokens under another guard (cached)."""
        if guard == self.guard:
            return self
        if guard not in self._guarded:
            self._guarded[guard] = replace(self, guard=guard)
        return self._guarded[guard]

    @cached_property
    def in_float32(self) -> Tokens:
        """The same tokens in float32; log-probs are rounded before they are subtracted."""
        behavior, target = (one.astype(np.float32) for one in (self.behavior, self.target))
        return replace(
            self,
            raw_log_ratio=target - behavior,
            recorded_behavior=behavior,
            recorded_target=target,
        )

    def once(self, key: Hashable, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return `compute()`, cached under a key."""
        if key not in self._computed:
            self._computed[key] = compute()
        result: NDArray[Any] = self._computed[key]
        return result

    @cached_property
    def unclamped(self) -> Array:
        """Log-ratios before any clamp, with NaN and infinity treated by the guard, [tokens]."""
        values = self.raw_log_ratio
        if self.guard.nan_log_prob is not None:
            values = self.target - self.behavior
        if self.guard.non_finite == "equal":
            values = np.where(np.isfinite(values), values, values.dtype.type(0.0))
        elif self.guard.non_finite == "nan_equal":
            values = np.where(np.isnan(values), values.dtype.type(0.0), values)
        return values

    @cached_property
    def log_ratio(self) -> Array:
        """Log-ratios as they are used in sums and means, [tokens]."""
        if self.guard.before_sums:
            return self._within_bound(self.unclamped)
        return self.unclamped

    @cached_property
    def clamped(self) -> Array:
        """Log-ratios as they are used in exp, [tokens]."""
        if self.guard.before_sums or np.isinf(self.guard.bound):
            return self.log_ratio
        return self._within_bound(self.log_ratio)

    def _within_bound(self, values: Array) -> Array:
        """Clip values to the guard's bound; return the array itself if nothing changes."""
        bound = self.guard.bound
        if len(values) and values.min() >= -bound and values.max() <= bound:
            return values
        return np.clip(values, -bound, bound)

    @cached_property
    def true_ratio(self) -> Array:
        """Ratios without a clamp, in float64, for `actual_numbers`, [tokens]."""
        if self.clamped is self.raw_log_ratio and self.ratio.dtype == np.float64:
            return self.ratio
        with np.errstate(over="ignore"):
            return np.exp(self.raw_log_ratio.astype(np.float64, copy=False))

    @cached_property
    def ratio(self) -> Array:
        return self.guard.finite(exp(self.clamped))

    @cached_property
    def k3(self) -> Array:
        """Ratio - 1 - log_ratio of clamped log-ratios, nats, [tokens]."""
        if self.clamped.dtype == np.float64:
            return np.expm1(self.clamped) - self.clamped
        # Trainers compute it this way in float32, and lose digits.
        return self.ratio - self.clamped.dtype.type(1.0) - self.clamped

    @property
    def behavior(self) -> Array:
        """Log-probs of the behavior policy, nats, [tokens]."""
        assert self.recorded_behavior is not None, "the log-probs themselves are needed"
        return self._without_nan(self.recorded_behavior)

    @property
    def target(self) -> Array:
        """Log-probs of the target policy, nats, [tokens]."""
        assert self.recorded_target is not None, "the log-probs themselves are needed"
        return self._without_nan(self.recorded_target)

    def _without_nan(self, log_probs: Array) -> Array:
        """Replace log-probs that are NaN as the guard says, [tokens]."""
        instead = self.guard.nan_log_prob
        if instead is None:
            return log_probs
        return np.where(np.isnan(log_probs), log_probs.dtype.type(instead), log_probs)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of sampled tokens of each sequence, [sequences]."""
        assert self.row_lengths is not None, "the sequences of the tokens are needed"
        return self.row_lengths

    @property
    def advantage(self) -> Array:
        """Advantage of each token, NaN if unknown, [tokens]."""
        if self.known_advantage is None:
            return np.full(len(self.raw_log_ratio), np.nan)
        return self.known_advantage

    @cached_property
    def segment_lengths(self) -> NDArray[np.int64]:
        """Number of sampled tokens of each segment (run of one turn), [segments]."""
        starts = np.zeros(len(self.raw_log_ratio), np.bool_)
        starts[np.cumsum(self.lengths)[:-1]] = True
        if self.turn is not None:
            starts[1:] |= np.diff(self.turn) != 0
        edges = np.flatnonzero(starts)
        return np.diff(np.concatenate([[0], edges, [len(starts)]]))

    def row_sum(self, values: Array) -> Array:
        """Sum values over each sequence, [sequences], in float64."""
        return segment_sum(values.astype(np.float64, copy=False), self.lengths)

    def row_mean(self, values: Array) -> Array:
        """Average values over each sequence, [sequences], in float64."""
        return self.row_sum(values) / self.lengths

    def on_tokens(self, of_rows: NDArray[Any]) -> NDArray[Any]:
        """Repeat the value of each sequence for its tokens, [tokens]."""
        return np.repeat(of_rows, self.lengths)

    def segment_mean(self, values: Array) -> Array:
        """Return for each token the mean over its segment, [tokens], in float64."""
        sums = segment_sum(values.astype(np.float64, copy=False), self.segment_lengths)
        return np.repeat(sums / self.segment_lengths, self.segment_lengths)
