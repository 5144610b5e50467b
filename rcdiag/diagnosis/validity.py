"""Are importance weights valid? They are where the recorded distribution is the one that sampled.

The tokens alone answer this, whatever the size of the mismatch and whatever its cause. With tokens
y drawn from the recorded distribution mu, for any distribution pi of the trainer,

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
from math import ceil
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.thresholds import FEWEST_ROWS
from rcdiag.formats import with_interval
from rcdiag.results.base import MetricValue
from rcdiag.statistics.intervals import errors_and_reaches, influences

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"

# The excess halfway between "the recorded distribution sampled" (0) and "the trainer's did" (1).
HALFWAY = 0.5
# Nats: a larger log-ratio counts as this one, so that a single token cannot overflow a mean.
LARGEST = 15.0
# Where the recorded distribution sampled, -E[log_ratio] = E[ratio - 1 - log_ratio], so that kappa
# is a mean of 2 (e^x - 1 - x) / x^2 over log-ratios x >= -LARGEST, which increases with x.
LEAST_KAPPA = 2.0 * (LARGEST - 1.0) / LARGEST**2
MOST_BY_KAPPA = (1.0 - LEAST_KAPPA) / 2.0  # 0.44
# A mean ratio within this distance of 1 counts as 1: rounding of the recorded log-probs moves it
# this far.
ROUNDING = 1e-3
MANY_TIMES = 1000  # nobody takes so many times the rows
# Nats, rms: two correct engines differ by up to .06, and a sample shows a little more by chance.
# The mean squared error of the record is E[ratio] - 1.
MOST_OF_ENGINES = 0.07


class Interval(Struct, frozen=True):
    """An estimate with its 95% interval over rows."""

    value: float
    low: float
    high: float

    def between(self, least: float, most: float) -> bool:
        """Tell whether the whole interval lies between two numbers."""
        return least < self.low and self.high < most


class Validity(Struct, frozen=True, dict=True):
    """Whether the recorded distribution sampled the tokens, with intervals."""

    ratio_mean: Interval  # E[ratio]
    excess: Interval  # (E[ratio] - 1) / E[log_ratio^2]
    by_kappa: Interval  # (1 - kappa) / 2, the same number without exponentials
    rows: int  # with sampled tokens
    without_rare: bool = False  # rare tokens were left out: E[ratio] over the others may be any

    @cached_property
    def answer(self) -> str:
        """Return VALID, INVALID or UNKNOWN.

        INVALID: the recorded distribution is at least as far from the one that sampled as the
        trainer's is, or further than the rounding of two engines explains. If a few large ratios
        make the interval of E[ratio] too wide, kappa may still decide.
        """
        if self.rows < FEWEST_ROWS or self.without_rare:
            return UNKNOWN
        away = abs(self.ratio_mean.value - 1.0) > ROUNDING
        beyond = self.excess.low > HALFWAY or self.excess.high < -HALFWAY
        if away and (beyond or self.by_kappa.low > MOST_BY_KAPPA):
            return INVALID
        if self.ratio_mean.low - 1.0 > MOST_OF_ENGINES**2:
            return INVALID
        if self.lacks_ratio:
            return UNKNOWN
        by_mean = self.excess.between(-HALFWAY, HALFWAY)
        return VALID if by_mean or self.by_kappa.between(-HALFWAY, MOST_BY_KAPPA) else UNKNOWN

    @property
    def overrules_cause(self) -> bool:
        """Tell whether the verdict stays open whatever the cause.

        Too few rows, or a mean ratio below 1, speak against any cause that makes weights valid.
        """
        return self.answer == UNKNOWN and (self.rows < FEWEST_ROWS or self.lacks_ratio)

    @property
    def lacks_ratio(self) -> bool:
        """Tell whether the mean ratio is significantly below 1, by more than engines explain.

        It then lacks a part of the trainer's support, or the few large ratios that bring the mean
        to 1: it is open whether the recorded distribution sampled.
        """
        return self.ratio_mean.high < 1.0 - MOST_OF_ENGINES**2

    @property
    def lacks_support(self) -> bool:
        """Tell whether the sampler significantly lacks a part of the trainer's support."""
        return self.answer == INVALID and self.excess.high < -HALFWAY

    @property
    def rows_needed(self) -> str:
        """Say about how many rows like these would decide; errors shrink as 1 / sqrt(rows)."""
        times = max((self.excess.high - self.excess.low) / 2 / HALFWAY, 1.0) ** 2
        if times > MANY_TIMES:
            return f"more than {MANY_TIMES * self.rows:,} rows"
        return f"about {ceil(self.rows * times):,} rows like these {self.rows:,}"

    @property
    def decisive(self) -> tuple[str, Interval]:
        """Return the number that decides, with its name; it is 1 if the recorded policy sampled."""
        if self.answer == INVALID and self.ratio_mean.low <= 1.0 <= self.ratio_mean.high:
            half = self.by_kappa
            return "kappa", Interval(1 - 2 * half.value, 1 - 2 * half.high, 1 - 2 * half.low)
        return "E[ratio]", self.ratio_mean

    @property
    def sentence(self) -> str:
        """Say whether the recorded distribution sampled, with the interval of E[ratio]."""
        name, decides = self.decisive
        interval = MetricValue(value=decides.value, low=decides.low, high=decides.high)
        found = f"{name} is {with_interval(interval)}"
        if self.answer == VALID:
            return f"{found}: the recorded distribution sampled."
        if self.answer == INVALID:
            return f"{found}, not 1: the recorded distribution is not the one that sampled."
        if self.without_rare:
            return "Rare tokens were left out; the others do not tell which distribution sampled."
        if self.rows < FEWEST_ROWS:
            return f"Fewer than {FEWEST_ROWS} rows do not tell which distribution sampled."
        if self.lacks_ratio:
            return (
                f"{found}, below 1: another distribution sampled, or the sample lacks the few "
                "large ratios that bring the mean to 1."
            )
        return (
            f"{found}, too wide to tell whether the recorded distribution sampled: "
            f"{self.rows_needed} would decide."
        )

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the numbers, as an entry of a cause's evidence."""
        reads = {
            VALID: "near 1: the recorded distribution sampled",
            INVALID: "not 1: the recorded distribution did not sample",
            UNKNOWN: "interval too wide to tell which distribution sampled",
        }[self.answer]
        name, mean = self.decisive
        if self.answer == UNKNOWN and self.rows < FEWEST_ROWS:
            reads = "too few rows to tell which distribution sampled"
        if self.answer == UNKNOWN and self.lacks_ratio:
            reads = "below 1: another distribution sampled, or large ratios are missing"
        if self.answer == UNKNOWN and mean.between(1.0 - ROUNDING, 1.0 + ROUNDING):
            reads = "1 to within rounding"
        if self.without_rare:
            reads = "without rare tokens it does not tell which distribution sampled"
        return {
            "name": name,
            "value": mean.value,
            "low": mean.low,
            "high": mean.high,
            "reads": reads,
        }


def validity_of(case: Case) -> Validity:
    """Ask whether the recorded distribution sampled a case's tokens.

    Standard errors are taken over rows, also where several rows answer one prompt: under the
    recorded distribution E[ratio] is 1 in every context, so that the deviations of two rows from 1
    are uncorrelated.
    """
    tokens = case.tokens
    log_ratio = np.clip(tokens.log_ratio, -LARGEST, LARGEST)
    present = tokens.per_row > 0

    def sums(values: Array) -> Array:
        return tokens.row_sums(values)[present]

    surplus, squares = sums(np.expm1(log_ratio)), sums(log_ratio**2)
    count = tokens.per_row[present].astype(np.float64)
    mean = _ratio_of_sums(surplus, count, count)
    return Validity(
        ratio_mean=Interval(1.0 + mean.value, 1.0 + mean.low, 1.0 + mean.high),
        excess=_ratio_of_sums(surplus, squares, count),
        by_kappa=_ratio_of_sums(squares / 2 + sums(log_ratio), squares, count),
        rows=int(present.sum()),
        without_rare=case.without_rare,
    )


def _ratio_of_sums(above: Array, below: Array, tokens: Array) -> Interval:
    """Return sum(above) / sum(below) with its 95% interval over rows of some tokens; all [rows].

    Few large ratios make the sums skewed, and the interval longer on their side.
    """
    total = float(below.sum())
    if len(below) < 2 or total <= 0:
        return Interval(0.0, -np.inf, np.inf)
    value = float(above.sum()) / total
    influence, rows = influences(above[:, None], below[:, None])
    error, down, up = errors_and_reaches(influence, rows, tokens[:, None])
    return Interval(value, value - float(down[0] * error[0]), value + float(up[0] * error[0]))
