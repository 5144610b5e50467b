"""The numbers of a window of steps: medians of logged values, and quantities derived from them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.causes.cause import fact
from rcdiag.diagnosis.logged.run import LoggedRun, Series
from rcdiag.diagnosis.thresholds import EQUAL, ROUNDING

# E|x| of a standard normal x, and the standard deviation of |x|.
ABS_MEAN, ABS_STD = math.sqrt(2.0 / math.pi), math.sqrt(1.0 - 2.0 / math.pi)
# Quantities that measure the size of log-ratios.
SIZES = ("k3", "k2", "abs_diff", "exp_abs_diff", "abs_diff_std")
# Quantities that k1 is taken from: one of them, or the first minus the second.
OF_K1 = (("k1",), ("log_ppl_diff",), ("trainer_log_ppl", "sampler_log_ppl"))
# Ends of what a quantity can be, by its unit.
RANGES = {"share": (0.0, 1.0), "probability": (0.0, 1.0), "correlation": (-1.0, 1.0)}
NEAR = 5  # steps that count as shortly before another one


class Estimate(Struct, frozen=True):
    """A number over the steps of a window, with its standard error over steps."""

    value: float
    error: float  # NaN where the window has one step
    key: str  # of the log, or the formula of keys, that it is taken from

    @property
    def z(self) -> float:
        """Return how many standard errors the number is from 0; 0 where the error is unknown."""
        return self.value / self.error if self.error > 0 else 0.0


class StepWindow(Struct, frozen=True, dict=True):
    """Some steps of a run: a stretch of consecutive ones, or periodic ones."""

    run: LoggedRun
    steps: Counts  # ascending

    @property
    def first(self) -> int:
        """Return the first step of the window."""
        return int(self.steps[0])

    @property
    def before(self) -> StepWindow | None:
        """Return steps shortly before those of this window; None where there are none.

        What drifts over a run has the same level there, so that a difference is one of this window.
        """
        steps = self.run.steps
        near = np.searchsorted(steps, self.steps)[:, None] - np.arange(1, NEAR + 1)
        others = np.setdiff1d(steps[near[near >= 0]], self.steps)
        return StepWindow(self.run, others) if len(others) else None

    def series(self, name: str) -> Series | None:
        """Return the whole series of a quantity; None where the log lacks it.

        A number that is outside of what the quantity can be, such as a k3 below 0, is none and
        counts as missing.
        """
        return None if name in self.impossible else self.run.series.get(name)

    @cached_property
    def impossible(self) -> dict[str, float]:
        """Return quantities whose logged median here is none of theirs: name -> median.

        No mean of k3 is below 0, and no share, probability or correlation outside of RANGES.
        """
        found = {}
        for name, one in self.run.series.items():
            values = one.at(self.steps)
            values = values[np.isfinite(values)]
            if not len(values):
                continue
            median = float(np.median(values))
            low, high = RANGES.get(one.quantity.unit, (-np.inf, np.inf))
            rounding = ROUNDING
            if name == "k3":  # no larger than its rounding itself
                low, rounding = 0.0, EQUAL
            if not low - rounding <= median <= high + rounding:
                found[name] = median
        return found

    @property
    def k3_below_zero(self) -> float | None:
        """Return the median of what the log has as k3 if it is below 0, as no k3 is."""
        return self.impossible.get("k3")

    def values(self, name: str) -> Array:
        """Return the values of a quantity in the window; empty where the log lacks it."""
        one = self.series(name)
        return np.zeros(0) if one is None else one.at(self.steps)

    def number(self, name: str) -> float | None:
        """Return the median of a quantity's finite values; None without any."""
        values = self.values(name)
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if len(finite) else None

    def key(self, name: str) -> str:
        """Return the key under which the log has a quantity."""
        one = self.series(name)
        return name if one is None else one.key

    def fact(self, name: str, reads: str, value: float | None = None) -> dict[str, Any]:
        """Return an entry of evidence: a key of the log, its median here, and what it means."""
        found = self.number(name) if value is None else value
        return fact(self.key(name), reads, value=None if found is None else float(f"{found:.4g}"))

    def estimate(self, *names: str) -> Estimate | None:
        """Return the mean over steps of the first quantity minus the others, with its error.

        Of two keys with the other sign, which begin with a minus, `-a - -b` is written `b - a`.
        """
        several = [self.series(name) for name in names]
        if any(one is None for one in several):
            return None
        by_step: dict[int, list[float]] = {step: [] for step in self.steps.tolist()}
        for one in several:
            assert one is not None
            for step, value in zip(one.steps.tolist(), one.values.tolist(), strict=True):
                if step in by_step:
                    by_step[step].append(value)
        rows = [values for values in by_step.values() if len(values) == len(names)]
        made = np.array([values[0] - sum(values[1:]) for values in rows])
        keys = [self.key(name) for name in names]
        if len(keys) == 2 and all(key.startswith("-") for key in keys):
            keys = [keys[1][1:], keys[0][1:]]
        return _estimate(made[np.isfinite(made)], " - ".join(keys))

    @cached_property
    def excess(self) -> Estimate | None:
        """Return E[ratio] - 1, which is 0 if the recorded distribution sampled.

        It is taken from the logged mean ratio, or from k3 - k1 = E[ratio] - 1, or from k2 - k1,
        which is the same to second order. Its key is the one of E[ratio].
        """
        if self.has_ratio and (logged := self.estimate("ratio_mean")) is not None:
            return Estimate(logged.value - 1.0, logged.error, logged.key)
        made = self.estimate("k3", "k1") or self.estimate("k2", "k1")
        return None if made is None else Estimate(made.value, made.error, f"1 + {made.key}")

    @property
    def has_ratio(self) -> bool:
        """Tell whether the log has the mean of ratios, of which no bound cut any."""
        cut = (self.values("share_cut") > 0.0).any()
        return self.series("ratio_mean") is not None and not cut

    @cached_property
    def least_excess(self) -> Estimate | None:
        """Return the least E[ratio] - 1 by the mean of bounded weights; None without one.

        A bound from above lowers the mean. One from below raises it by the bound at most, which is
        no larger than the smallest weight.
        """
        mean, least = self.estimate("weight_mean"), self.values("least_weight")
        if mean is None or not len(least):
            return None
        return Estimate(mean.value - float(np.nanmin(least)) - 1.0, mean.error, mean.key)

    @cached_property
    def k1(self) -> Estimate | None:
        """Return E[-log_ratio]: as logged, or from surprisals, or as k3 - E[ratio] + 1."""
        for names in OF_K1:
            if (logged := self.estimate(*names)) is not None:
                return logged
        made = self.estimate("k3", "ratio_mean") if self.has_ratio else None
        return None if made is None else Estimate(made.value + 1.0, made.error, f"{made.key} + 1")

    @property
    def key_of_size(self) -> str:
        """Return the key, or the formula of keys, that `rms` is estimated from."""
        if self.of_size[0] in SIZES:
            return self.key(self.of_size[0])
        assert self.k1 is not None
        if self.k3_of_weights is None:
            return self.k1.key
        sign, key = " + ", self.k1.key
        if key.startswith("-"):
            sign, key = " - ", key[1:]
        return f"{self.key('weight_mean')} - 1{sign}{key}"

    @property
    def k3_of_weights(self) -> float | None:
        """Return weight - 1 + k1 where `rms` is estimated from it; None where |k1| is larger."""
        weight = self.number("weight_mean") if "weight_mean" in self.of_size else None
        if weight is None or self.k1 is None:
            return None
        k3 = weight - 1.0 + self.k1.value
        return k3 if k3 > abs(self.k1.value) else None

    @cached_property
    def of_size(self) -> tuple[str, ...]:
        """Return the quantities from which `rms` is estimated; empty without any.

        Without a size of log-ratios that is their mean; with the mean weight of tokens beside it,
        weight - 1 + k1 is a k3, up to the bounds of the weights.
        """
        for name in SIZES:
            if self.number(name) is not None:
                return (name,)
        names = next((of for of in OF_K1 if self.estimate(*of) is not None), ())
        of_tokens = self.run.known.of_tokens is not False
        weighed = names == ("k1",) and of_tokens and self.number("weight_mean") is not None
        return (*names, "weight_mean") if weighed else names

    @cached_property
    def rms(self) -> float | None:
        """Return the rms log_ratio, nats, estimated from the quantities `of_size`.

        The estimate is exact for small normal log-ratios, and has the right order otherwise. A
        mean log_ratio is minus or plus a KL divergence if either distribution sampled, so that
        half the mean square is |k1|; exchanged tokens have a mean of 0 and do not show in it.
        """
        if not self.of_size:
            return None
        name = self.of_size[0]
        if name not in SIZES:
            assert self.k1 is not None
            k3 = self.k3_of_weights
            return float(np.sqrt(2.0 * (abs(self.k1.value) if k3 is None else k3)))
        value = self.number(name)
        assert value is not None
        return float(rms_of(name, np.array(value)))

    @property
    def error_of_logits(self) -> float | None:
        """Return the least rms error of logits that makes the mismatch, nats; None without entropy.

        An error of s in each logit gives the log-prob of a token, on average over the policy's
        tokens, a variance of s^2 (1 - exp(-entropy)) at most.
        """
        entropy = self.number("entropy")
        if entropy is None or entropy <= 0.0 or self.rms is None or self.of_size[0] not in SIZES:
            return None
        return self.rms / math.sqrt(-math.expm1(-entropy))

    @property
    def largest(self) -> tuple[str, float] | None:
        """Return what no token's |log_ratio| exceeds here, nats, after the key that shows it.

        A token with a k3 of v has a |log_ratio| y below sqrt(2 v) + v, as the k3 of a ratio e^-y,
        y - 1 + e^-y, is v there at least.
        """
        for name in ("abs_diff_max", "k3_max"):
            if len(values := self.values(name)) and np.isfinite(values).all():
                most = max(float(values.max()), 0.0)
                bound = most if name == "abs_diff_max" else float(np.sqrt(2.0 * most)) + most
                return self.key(name), bound
        return None


def rms_of(name: str, values: Array) -> Array:
    """Return the rms log_ratio, nats, by values of a size, of a mean log_ratio or of a mean ratio.

    By Jensen's inequality a mean ratio m has a k3 of m - 1 - ln m at least.
    """
    if name == "exp_abs_diff":
        return np.asarray(np.log(np.maximum(values, 1.0)) / ABS_MEAN)
    if name in ("abs_diff", "log_ppl_abs_diff"):
        return np.asarray(values / ABS_MEAN)
    if name == "abs_diff_std":
        return np.asarray(values / ABS_STD)
    if name == "ratio_mean":
        values, name = values - 1.0 - np.log(values), "k3"
    squares = np.maximum(values, 0.0) if name in SIZES else np.abs(values)
    return np.asarray(np.sqrt(2.0) * np.sqrt(squares))  # 2 * 1e308 overflows


def _estimate(values: Array, key: str) -> Estimate | None:
    """Return the mean of values with its standard error; None without any.

    It is the mean, not the median, because a few steps often dominate E[ratio].
    """
    if not len(values):
        return None
    if len(values) < 2:
        return Estimate(float(values[0]), float("nan"), key)
    error = float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))
    return Estimate(float(np.mean(values)), max(error, 1e-15), key)
