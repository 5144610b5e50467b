"""Are importance weights valid? They are where the recorded distribution is the one that sampled.

This is asked of the tokens alone and has nothing to do with how large the mismatch is or what its
cause may be. With tokens y drawn from the recorded distribution mu, whatever the trainer's pi is,

    E[ratio] = sum over the vocabulary of mu(v) * pi(v) / mu(v) = 1.

Where another distribution sampled, E[ratio] differs from 1 by an amount of the size of
E[log_ratio^2]. To second order in the log-ratio

    excess = (E[ratio] - 1) / E[log_ratio^2] = V_mu / (V_mu + V_pi),

V the mean squared error of a column against the distribution that sampled: 0 where the recorded one
sampled, 1 where the trainer's did, 1/2 where both are equally far from it. kappa, which is
-2 E[log_ratio] / E[log_ratio^2], is the same number without exponentials: excess = (1 - kappa) / 2.
A recorded distribution that lacks a part of the trainer's support has an excess far below 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.estimates import mean_ratio
from rcdiag.frozen import dataclass
from rcdiag.statistics.distributions import student_quantile

Array = NDArray[np.float64]

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"

# Half of the way from "the recorded distribution sampled" (0) to "the trainer's did" (1).
HALFWAY = 0.5
# Intervals hold the number in 99 of 100 tables.
TAIL = 0.005
# Nats: a larger log-ratio counts as this one, so that a single token cannot overflow a mean.
LARGEST = 15.0
# Where the recorded distribution sampled, -E[log_ratio] = E[ratio - 1 - log_ratio], so that kappa
# is a mean of 2 (e^x - 1 - x) / x^2 over log-ratios x >= -LARGEST, which increases with x.
LEAST_KAPPA = 2.0 * (LARGEST - 1.0) / LARGEST**2
MOST_BY_KAPPA = (1.0 - LEAST_KAPPA) / 2.0  # 0.44
# A mean ratio nearer to 1 than this is 1: rounding of what was recorded moves it as far.
ROUNDING = 1e-3
FEWEST_CLUSTERS = 8  # of rows or prompt groups; fewer give no honest interval


@dataclass(frozen=True)
class Interval:
    """An estimate with its 99% interval over clusters of dependent rows."""

    value: float
    low: float
    high: float

    def inside(self, bound: float) -> bool:
        """Tell whether the whole interval lies between -bound and bound."""
        return -bound < self.low and self.high < bound

    def outside(self, bound: float) -> bool:
        """Tell whether the whole interval lies beyond -bound or bound."""
        return self.low > bound or self.high < -bound


@dataclass(frozen=True)
class Validity:
    """Whether the recorded distribution sampled the tokens of a table, and with which power."""

    ratio_mean: Interval  # E[ratio]
    excess: Interval  # (E[ratio] - 1) / E[log_ratio^2]
    by_kappa: Interval  # (1 - kappa) / 2, the same number without exponentials
    clusters: int  # independent ones: prompt groups, or rows
    rows: int

    @cached_property
    def answer(self) -> str:
        """Return VALID, INVALID or UNKNOWN.

        A few large ratios make the interval of E[ratio] wide; kappa may then still decide.
        """
        if self.clusters < FEWEST_CLUSTERS:
            return UNKNOWN
        away = abs(self.ratio_mean.value - 1.0) > ROUNDING
        if away and (self.excess.outside(HALFWAY) or self.by_kappa.low > MOST_BY_KAPPA):
            return INVALID
        within = self.by_kappa.low > -HALFWAY and self.by_kappa.high < MOST_BY_KAPPA
        return VALID if within or self.excess.inside(HALFWAY) else UNKNOWN

    @property
    def lacks_support(self) -> bool:
        """Tell whether E[ratio] is surely below 1: the sampler could not take what the trainer
        expects.
        """
        return self.answer == INVALID and self.excess.high < -HALFWAY

    @property
    def rows_needed(self) -> int:
        """Return about how many rows like these would decide: errors shrink by their root."""
        half = (self.excess.high - self.excess.low) / 2
        return int(np.ceil(self.rows * max(half / HALFWAY, 1.0) ** 2))

    @property
    def sentence(self) -> str:
        """Say who sampled, and how sure that is."""
        mean = self.ratio_mean
        found = f"E[ratio] is {mean_ratio(mean.value)} ({mean_ratio(mean.low)} to "
        found += f"{mean_ratio(mean.high)})"
        if self.answer == VALID:
            return f"{found}: the recorded distribution sampled, so importance weights are valid."
        if self.answer == INVALID:
            return f"{found}, not 1: the recorded distribution is not the one that sampled."
        if self.clusters < FEWEST_CLUSTERS:
            return f"{self.clusters} prompt groups or rows are too few to tell who sampled."
        return (
            f"{found}, too wide to tell whether the recorded distribution sampled: about "
            f"{self.rows_needed:,} rows like these {self.rows:,} would decide."
        )

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the numbers, as an entry of a cause's evidence."""
        reads = {
            VALID: "1: the recorded distribution sampled",
            INVALID: "not 1: the recorded distribution did not sample",
            UNKNOWN: "too wide to tell which distribution sampled",
        }[self.answer]
        mean = self.ratio_mean
        return {
            "name": "E[ratio]",
            "value": mean.value,
            "low": mean.low,
            "high": mean.high,
            "reads": reads,
        }


def validity_of(case: Case) -> Validity:
    """Ask whether the recorded distribution sampled a case's tokens.

    Rows of one prompt group depend on each other and form one cluster; without groups each row
    does.
    """
    tokens = case.tokens
    log_ratio = np.clip(tokens.log_ratio, -LARGEST, LARGEST)
    present = tokens.per_row > 0
    cluster = np.arange(tokens.rows)
    if case.facts.group is not None:
        _, cluster = np.unique(case.facts.group, return_inverse=True)
    count = len(np.unique(cluster[present]))

    def sums(values: Array) -> Array:
        by_row = tokens.row_sums(values)
        return np.bincount(cluster, by_row)[np.unique(cluster[present])]

    size = np.bincount(cluster, tokens.per_row.astype(np.float64))[np.unique(cluster[present])]
    surplus, squares = sums(np.expm1(log_ratio)), sums(log_ratio**2)
    mean = _ratio_of_sums(surplus, size, count)
    return Validity(
        ratio_mean=Interval(1.0 + mean.value, 1.0 + mean.low, 1.0 + mean.high),
        excess=_ratio_of_sums(surplus, squares, count),
        by_kappa=_ratio_of_sums(squares / 2 + sums(log_ratio), squares, count),
        clusters=count,
        rows=int(present.sum()),
    )


def _ratio_of_sums(above: Array, below: Array, count: int) -> Interval:
    """Return sum(above) / sum(below) with an interval; both [clusters].

    The error is that of the linearised ratio, with Student's t of count - 1 degrees of freedom.
    """
    total = float(below.sum())
    if count < 2 or total <= 0:
        return Interval(0.0, -np.inf, np.inf)
    value = float(above.sum()) / total
    residual = above - value * below
    error = float(np.sqrt(np.sum(residual**2) * count / (count - 1))) / total
    reach = float(student_quantile(count - 1, TAIL)) * error
    return Interval(value, value - reach, value + reach)
