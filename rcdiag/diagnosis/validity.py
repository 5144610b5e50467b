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
from math import ceil, floor, log10
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.thresholds import (
    ALL,
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    HALF,
    ROUNDING,
    SURELY,
)
from rcdiag.formats import mean_ratio, rough, with_interval
from rcdiag.results.base import MetricValue
from rcdiag.statistics.intervals import errors_and_reaches, influences

VALID, INVALID, UNKNOWN = "valid", "invalid", "unknown"
RECORD_SAMPLED = "the recorded distribution sampled"  # what a number reads where weights are valid

# The excess halfway between "the recorded distribution sampled" (0) and "the trainer's did" (1).
HALFWAY = HALF
# Nats: a larger |log-ratio| counts as this one, so that a single token cannot overflow a mean.
LARGEST = 15.0
# Where the recorded distribution sampled, -E[log_ratio] = E[ratio - 1 - log_ratio], so that kappa
# is a mean of 2 (e^x - 1 - x) / x^2 over log-ratios x >= -LARGEST, which increases with x.
LEAST_KAPPA = 2.0 * (LARGEST - 1.0) / LARGEST**2
MOST_BY_KAPPA = (1.0 - LEAST_KAPPA) / 2.0  # 0.44
TOO_MANY_TIMES = 1000  # times the rows: beyond it, only this bound of their number is said
# Nats, rms: two correct engines differ by up to .06, and a sample shows a little more by chance.
MOST_OF_ENGINES = 0.07
# Where a distribution sampled that is one engine's rounding away from the record, E[ratio] - 1 is
# the mean squared error of the record, at most this.
OF_ENGINES = MOST_OF_ENGINES**2
# Nats: one token in 1,000 has a larger log-ratio by normal noise of that rms.
LARGEST_NOISE = 3.09 * MOST_OF_ENGINES
# At 95% a sample may lack all tokens of a kind of which it should have up to this many.
UNSEEN = 3.0
# Beyond this E[log_ratio^2] the second order does not say what E[ratio] would be.
SECOND_ORDER = 0.3


class Interval(Struct, frozen=True):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write value and interval with enough digits for the interval's ends to differ."""
        width = self.high - self.low
        if not 0.0 < width < np.inf or self.value == 0.0:
            return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"
        digits = max(floor(log10(abs(self.value))) - floor(log10(width)) + 2, 3)
        return f"{self.value:.{digits}g} ({self.low:.{digits}g} to {self.high:.{digits}g})"

    def between(self, least: float, most: float) -> bool:
        """Tell whether the whole interval lies between two numbers."""
        return least < self.low and self.high < most


class Validity(Struct, frozen=True, dict=True):
    """Whether the recorded distribution sampled the tokens, with intervals."""

    ratio_mean: Interval  # E[ratio]
    excess: Interval  # (E[ratio] - 1) / E[log_ratio^2]
    by_kappa: Interval  # (1 - kappa) / 2, the same number without exponentials
    mean_square: float  # E[log_ratio^2]; if the trainer's distribution sampled, E[ratio] - 1
    upper: float  # the 99.9% quantile of the log-ratio, nats
    chance: float  # standard error of E[ratio] over tokens, where the recorded policy sampled
    unseen: float  # what UNSEEN more tokens, each with the largest ratio, would add to E[ratio]
    rows: int  # with sampled tokens
    # Fewer than FEWEST_OF_PATTERN rows hold most of E[log_ratio^2] (as an effective number).
    few: bool = False
    cut: int = 0  # tokens with a |log-ratio| above LARGEST, which counts as LARGEST
    without_rare: bool = False  # rare tokens were left out, so E[ratio] need not be 1
    within: str = ""  # the part of a table's rows that was judged: "from step 8 on"; "" for all

    @cached_property
    def answer(self) -> str:
        """Return VALID, INVALID or UNKNOWN.

        INVALID: the recorded distribution is at least as far from the one that sampled as the
        trainer's is, or further than the rounding of two engines explains, or it lacks a part of
        the trainer's support. If a few large ratios make the interval of E[ratio] too wide, kappa
        may still decide. Where a few rows hold the squares by which excess and kappa are divided,
        their intervals are too narrow, and E[ratio] alone decides.
        """
        if self.rows < FEWEST_ROWS or self.without_rare:
            return UNKNOWN
        away = abs(self.ratio_mean.value - 1.0) > ROUNDING and not self.few
        beyond = self.excess.low > HALFWAY or self.excess.high < -HALFWAY
        if away and (beyond or self.by_kappa.low > MOST_BY_KAPPA):
            return INVALID
        by_chance = self.ratio_mean.value - 1.0 <= SURELY * self.chance
        if self.ratio_mean.low - 1.0 > OF_ENGINES and not by_chance:
            return INVALID
        if self.lacks_ratio:
            return INVALID if self.upper < LARGEST_NOISE else UNKNOWN
        return VALID if self.within_rounding or self.by_mean or self.kappa_decides else UNKNOWN

    @property
    def within_rounding(self) -> bool:
        """Tell whether recorded and sampling distribution differ by no more than rounding."""
        return self.ratio_mean.between(1.0 - OF_ENGINES, 1.0 + OF_ENGINES)

    @property
    def by_mean(self) -> bool:
        """Tell whether the recorded distribution is nearer than the trainer's to what sampled.

        Where squared log-ratios are far above 1, excess is near 0 whatever sampled: E[ratio] must
        be as near to 1 as if they were 1.
        """
        near = self.ratio_mean.between(1.0 - HALFWAY, 1.0 + HALFWAY) and not self.few
        return near and self.excess.between(-HALFWAY, HALFWAY)

    @property
    def kappa_decides(self) -> bool:
        """Tell whether kappa alone shows that the recorded distribution sampled."""
        by_kappa = self.by_kappa.between(-HALFWAY, MOST_BY_KAPPA)
        return by_kappa and not (self.within_rounding or self.by_mean or self.few)

    @property
    def overrules_cause(self) -> bool:
        """Tell whether the verdict is `inconclusive` whatever the cause.

        Too few rows, or a mean ratio below 1, speak against any cause that makes weights valid.
        """
        return self.answer == UNKNOWN and (self.rows < FEWEST_ROWS or self.lacks_ratio)

    @property
    def lacks_ratio(self) -> bool:
        """Tell whether the mean ratio is below 1 by more than engines and unseen tokens explain.

        It then lacks a part of the trainer's support, or large ratios that bring the mean to 1.
        Where no log-ratio is far above 0 there are no large ratios, and it is the support.
        """
        return self.ratio_mean.high + self.unseen < 1.0 - OF_ENGINES

    @property
    def lacks_support(self) -> bool:
        """Tell whether the sampler significantly lacks a part of the trainer's support."""
        return self.answer == INVALID and (self.excess.high < -HALFWAY or self.lacks_ratio)

    @property
    def rows_needed(self) -> str:
        """Say about how many more rows would decide, if the estimates stayed the same.

        The ends of an interval approach its estimate as 1 / sqrt(rows).
        """
        by_each = (
            _times(self.excess, -HALFWAY, HALFWAY),
            _times(self.by_kappa, -HALFWAY, MOST_BY_KAPPA),
            _times(self.ratio_mean, 1.0 - OF_ENGINES, 1.0 + OF_ENGINES),
        )
        times = min((times for times in by_each if times > 1.0), default=np.inf)
        if times > TOO_MANY_TIMES:
            return f"more than {TOO_MANY_TIMES * self.rows:,} rows"
        more = max(ceil(self.rows * (times - 1.0)), FEWEST_ROWS)  # fewer may not, by chance
        return f"about {rough(more)} more rows like these {self.rows:,}"

    @property
    def decisive(self) -> tuple[str, Interval]:
        """Return the number that decides, with its name; it is 1 if the recorded policy sampled."""
        by_kappa = self.answer == INVALID and self.ratio_mean.low <= 1.0 <= self.ratio_mean.high
        if by_kappa or (self.answer == VALID and self.kappa_decides):
            half = self.by_kappa
            kappa = Interval(1 - 2 * half.value, 1 - 2 * half.high, 1 - 2 * half.low)
            return self.named("kappa"), kappa
        return self.named(self.name_of_mean), self.ratio_mean

    @property
    def name_of_mean(self) -> str:
        """Return the name of E[ratio], with the bound of its log-ratios where any is beyond it."""
        return f"E[ratio, cut at e^±{LARGEST:.0f}]" if self.cut else "E[ratio]"

    def named(self, number: str) -> str:
        """Return the name of a number with the rows that it is of, where they are not all."""
        return f"{number} {self.within}".rstrip()

    @property
    def reads(self) -> str:
        """Say what the decisive number shows, or what it would be if another policy had sampled."""
        if self.without_rare:
            return "without rare tokens it does not tell which distribution sampled"
        if self.rows < FEWEST_ROWS:
            return f"fewer than {FEWEST_ROWS} rows do not tell which distribution sampled"
        if self.answer == INVALID and self.lacks_support:
            return (
                "below 1: the recorded distribution lacks tokens of the trainer's, or did not "
                "sample"
            )
        if self.answer == INVALID:
            return "not 1: the recorded distribution is not the one that sampled"
        if self.lacks_ratio:
            return (
                "below 1: another distribution sampled, or the sample lacks the few large ratios "
                "that bring the mean to 1"
            )
        if self.answer == UNKNOWN:
            few_decide = "it depends on a few rows"
            if self.cut:
                of = "1 token differs" if self.cut == 1 else f"{self.cut:,} tokens differ"
                few_decide = f"{of} by more than {LARGEST:.0f} nats"
            return "too wide to tell whether the recorded distribution sampled: " + (
                few_decide if self.few or self.cut else f"{self.rows_needed} would decide"
            )
        if self.kappa_decides:
            return f"above 0: {RECORD_SAMPLED}; below 0 if the trainer's had"
        if not self.by_mean:
            return "1 to within an engine's rounding: no sign that another distribution sampled"
        if self.mean_square >= SECOND_ORDER:
            return f"near 1: {RECORD_SAMPLED}"
        # If the trainer's distribution had sampled a share of the rows, excess would be that share.
        rows = f" ≥{floor(100 * (1 - self.excess.high))}% of rows"
        shown = rows if 0.0 < self.excess.high < 1.0 else ""
        other = mean_ratio(1 + self.mean_square)
        return f"near 1: {RECORD_SAMPLED}{shown}; {other} if the trainer's had"

    @property
    def sentence(self) -> str:
        """Say whether the recorded distribution sampled, with the interval of E[ratio]."""
        name, decides = self.decisive
        interval = MetricValue(value=decides.value, low=decides.low, high=decides.high)
        return f"{name} is {with_interval(interval)}, {self.reads}."

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the numbers, as an entry of a cause's evidence."""
        name, mean = self.decisive
        return {
            "name": name,
            "value": mean.value,
            "low": mean.low,
            "high": mean.high,
            "reads": self.reads,
        }


def _times(found: Interval, least: float, most: float) -> float:
    """Return how many times the rows would take the interval off both of two bounds."""
    reaches = {
        bound - found.value: found.high - found.value
        if bound > found.value
        else found.value - found.low
        for bound in (least, most)
    }
    return max((reach / far) ** 2 if far else np.inf for far, reach in reaches.items())


def validity_of(case: Case, within: str = "") -> Validity:
    """Ask whether the recorded distribution sampled a case's tokens.

    `within` says which part of a table's rows the case has.

    Standard errors are taken over rows, also where several rows answer one prompt: under the
    recorded distribution E[ratio] is 1 in every context, so that the deviations of two rows from 1
    are uncorrelated. So are those of two tokens, of which `chance` is made: the error over a few
    rows may be much smaller by chance alone.
    """
    tokens = case.tokens
    log_ratio = np.clip(tokens.log_ratio, -LARGEST, LARGEST)
    present = tokens.per_row > 0

    def sums(values: Array) -> Array:
        return tokens.row_sums(values)[present]

    surplus, squares = sums(np.expm1(log_ratio)), sums(log_ratio**2)
    count = tokens.per_row[present].astype(np.float64)
    mean = _ratio_of_sums(surplus, count, count)
    total = max(float(count.sum()), 1.0)
    largest = float(log_ratio.max(initial=0.0))
    return Validity(
        ratio_mean=Interval(1.0 + mean.value, max(1.0 + mean.low, 0.0), 1.0 + mean.high),
        excess=_ratio_of_sums(surplus, squares, count),
        by_kappa=_ratio_of_sums(squares / 2 + sums(log_ratio), squares, count),
        mean_square=float(squares.sum()) / total,
        upper=float(np.quantile(log_ratio, ALL)) if len(log_ratio) else 0.0,
        chance=float(np.sqrt(sums(np.expm1(log_ratio) ** 2).sum())) / total,
        unseen=UNSEEN * float(np.exp(largest)) / total,
        rows=int(present.sum()),
        cut=int((np.abs(tokens.log_ratio) > LARGEST).sum()),
        few=float(squares.sum()) ** 2 < FEWEST_OF_PATTERN * float(squares @ squares),
        without_rare=case.without_rare,
        within=within,
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
