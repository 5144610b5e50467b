"""What a metric is: a number about two policies, with its interval, its level and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rcdiag.results import MetricValue
from rcdiag.statistics.intervals import NONE, Interval, bootstrap
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals

PROPOSAL = "rcdiag's proposal"
Bound = float | Callable[[Suite], float]


@dataclass(frozen=True, slots=True)
class Guide:
    """From where on a value is a warning or an error, and who says so."""

    warning: Bound
    error: Bound
    source: str
    # The ideal in the middle: bounds are distances from it, either way.
    around: float | None = None
    # Judge by the end of the interval that is nearest to the ideal: for noisy numbers.
    by_interval: bool = False
    # Where it is False there is nothing to judge.
    applies: Callable[[Suite], bool] = lambda suite: True

    def bounds(self, suite: Suite) -> tuple[float, float]:
        """Where warning and error begin, on this data."""
        warning, error = (
            bound(suite) if callable(bound) else bound for bound in (self.warning, self.error)
        )
        return warning, error

    def level(self, value: float, bounds: tuple[float, float]) -> str | None:
        """ok, warning or error; None for a value that is no number."""
        if np.isnan(value):
            return None
        warning, error = bounds
        if self.around is not None:
            value = abs(value - self.around)
        sign = -1.0 if error < warning else 1.0
        if sign * value >= sign * error:
            return "error"
        return "warning" if sign * value >= sign * warning else "ok"

    def judged(self, value: float, interval: Interval) -> float:
        """The number that the level is of: the value, or the nearest that its interval allows."""
        low, high = interval
        if not self.by_interval or self.around is None or low is None or high is None:
            return value
        return float(np.clip(self.around, low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a reader wants to know about a number before believing it."""

    label: str
    unit: str = ""  # "" for a pure number
    ideal: float | None  # its value when both policies are the same
    about: str  # what it is, in one line, with its formula
    guide: Guide | None = None
    headline: bool = False  # on the first screen

    def estimate(self, suite: Suite) -> tuple[float, Interval]:
        raise NotImplementedError

    def value(self, suite: Suite) -> MetricValue:
        """Value, interval and level on one suite's tokens."""
        # Ratios out of range are inf or 0, and what is not defined is NaN: no warning needed.
        with np.errstate(all="ignore"):
            return self._value(suite)

    def _value(self, suite: Suite) -> MetricValue:
        value, (low, high) = self.estimate(suite)
        if np.isnan(value) and np.isfinite(suite.log_ratio_sum):
            return MetricValue(value=None)  # not defined on this data, and no NaN's doing
        level = None
        if self.guide and self.guide.applies(suite):
            judged = self.guide.judged(value, (low, high))
            level = self.guide.level(judged, self.guide.bounds(suite))
        return MetricValue(value=value, low=low, high=high, level=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged(Metric):
    """Made from totals, so its interval comes from drawing clusters anew."""

    formula: Callable[[Totals], Array]  # [replicates]
    # A share of 0 in a sample does not make it 0: no replicate can show what was never seen.
    zero_is_certain: bool = True

    def estimate(self, suite: Suite) -> tuple[float, Interval]:
        value = float(self.formula(suite.point)[0])
        if not np.isfinite(value) or suite.clusters < 2:
            return value, NONE
        if value == 0.0 and not self.zero_is_certain:
            return value, NONE
        replicates, left_out = self.formula(suite.replicates), self.formula(suite.left_out)
        return value, bootstrap(value, replicates, left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Metric):
    """Needs the tokens as they are: an extreme, a rank, a tail."""

    of_suite: Callable[[Suite], tuple[float, Interval]]
    of_log_ratios: bool = True  # then a log-ratio that is NaN makes it NaN

    def estimate(self, suite: Suite) -> tuple[float, Interval]:
        if self.of_log_ratios and np.isnan(suite.log_ratio_sum):
            return np.nan, NONE
        return self.of_suite(suite)
