"""Metric: a number about two policies, with its formula, its limits and its explanation.

`METRICS.add(Metric(...))` adds one. Results, screens, pages, explanations and the JSON Schema all
read this definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from rcdiag.entry import Entry
from rcdiag.registry import Registry
from rcdiag.results import MetricValue
from rcdiag.results.guide import Guide
from rcdiag.statistics.intervals import (
    NONE,
    Interval,
    JackknifeReplicates,
    jackknife_intervals,
    share_interval,
)
from rcdiag.statistics.ratios import TOKEN_SUMS, Array, TokenSum
from rcdiag.statistics.second_moment import is_observable
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import SEQUENCE_SUMS, SequenceSum, Totals

LOG_RATIO = "log_ratio = target - behavior, in nats"
SYMMETRIC = "the same with the log-probs of both policies exchanged"
# What a number may presuppose about the data. None: it describes the tokens, whoever sampled them.
BEHAVIOR_SAMPLED = "the behavior policy sampled the tokens"
SEQUENCES_SAMPLED = "the behavior policy sampled the whole sequences"

# The source of a metric's 95% interval.
BY_CLUSTERS = "the prompt groups, left out one by one"
BY_FIT = "the asymptotic error of a fit, whose values count as independent"
NO_INTERVAL = "nowhere: the number is an extreme, or itself an error"

# The two short sequences that every definition's `example` is computed from.
RATIOS_OF_EXAMPLE = "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]: "
PAIR_OF_EXAMPLE = (
    "behavior log-probs [-1, -0.5, -2], [-0.7, -1.5], log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]: "
)


class MetricFamily(Struct, frozen=True, kw_only=True):
    """Metrics that answer one question; the worst family decides the verdict, never an average."""

    name: str
    question: str
    slug: str  # the finding if one of its metrics is beyond its guide
    fix: str  # what to do about it
    gate: bool = False  # must be resolved before the other families mean anything

    @property
    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of the family by name, in reading order."""
        return {name: metric for name, metric in METRICS.items() if metric.family == self}


class Metric(Struct, frozen=True, kw_only=True):
    """A number about two policies: its computation, and what a reader wants to know about it."""

    name: str
    family: MetricFamily
    label: str  # a short title
    says: str  # what it is, in plain sentences
    formula: str  # E[...] is the mean over the sampled tokens, unless it says sequences
    unit: str = ""  # "" for a pure number
    ideal: float | None  # its value if both policies are the same
    least: float | None = None  # lower bound of the true value; an estimate may be below it
    most: float | None = None  # upper bound of the true value; an interval's end may be above it
    # Bound of the estimate itself: the interval is computed on the log of the distance from it.
    bound: float | None = None
    direction: str = LOG_RATIO  # what its sign means, or which policy is compared with which
    presupposes: str | None = None  # BEHAVIOR_SAMPLED, SEQUENCES_SAMPLED or None
    guide: Guide | None = None
    # The guide if it depends on the data; the result is None if there is nothing to judge.
    guide_for: Callable[[Suite], Guide | None] | None = None
    fewest_clusters: int = 0  # with fewer prompt groups its level is unknown
    # The value that rounding alone would give, from precisions, probabilities and lengths, without
    # the observed mismatch. None if the precisions do not determine it.
    expects: Callable[[Suite], float | None] | None = None
    source: str = ""  # of the definition: a paper, or the program that logs the number
    # Trainer -> its name for the number, and how its number differs.
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    example: str = ""  # a computed number; "" if two short sequences cannot show one
    see: tuple[str, ...] = ()  # names that `rcdiag explain` knows
    headline: bool = False  # on the first screen

    # Its computation, exactly one of these two: from totals without each cluster ([replicates]), or
    # from all tokens if it is a maximum, a quantile or a tail fit.
    from_totals: Callable[[Totals], Array] | None = None
    from_suite: Callable[[Suite], tuple[float, Interval]] | None = None
    interval: str = BY_CLUSTERS
    # "token" or "seq" if rare large ratios of tokens or sequences would move the number, of which
    # the sample may have none: `giants_move` is the end of the interval on that side. It is given
    # only where the second moment of the ratios is observable.
    giants: str | None = None
    giants_move: str = "high"
    # (suite, end by the sample) -> that end with the rare large ratios, at least as far out.
    beyond_sample: Callable[[Suite, float], float] | None = None
    # The 0-or-1 token sum of which `from_totals` is the share: its interval is that of a count.
    counts: str | None = None
    of_log_ratios: bool = True  # for `from_suite`: a NaN log-ratio makes the number NaN
    # Sums that only this metric needs; a pass over a table computes them once it is registered.
    token_sums: tuple[TokenSum, ...] = ()
    sequence_sums: tuple[SequenceSum, ...] = ()

    def __post_init__(self) -> None:
        assert (self.from_totals is None) != (self.from_suite is None), self.name
        assert self.guide is not None or self.guide_for is None, self.name

    @property
    def level(self) -> str:
        """Return what the mean is over: "seq" if the formula says so, else "token"."""
        return "seq" if "over sequences" in self.formula else "token"

    @property
    def range(self) -> tuple[float, float] | None:
        """Return the least and the largest possible value; None if not bounded on both sides."""
        ends = {end for end in (self.least, self.bound, self.most) if end is not None}
        return (min(ends), max(ends)) if len(ends) > 1 else None

    @property
    def about(self) -> str:
        """Return what the metric is, and its formula, in one paragraph."""
        return f"{self.says} Formula: {self.formula}."

    def entry(self) -> Entry:
        """Return the explanation: what the number is, its formula, and its limits."""
        source = f" Source: {self.source}." if self.source else ""
        presupposes = f"; presupposes that {self.presupposes}" if self.presupposes else ""
        ideal = None if self.ideal is None else f"ideal {self.ideal:g}"
        healthy = [part for part in (ideal, self.guide and self.guide.bounds) if part]
        path = f".mismatch.{self.name}"  # in the syntax of jq
        if not self.name.isidentifier():
            path = f"'.mismatch.\"{self.name}\"'"
        return Entry(
            what=f"{self.label}: {self.says}{source}",
            formula=self.formula,
            direction=self.direction + presupposes,
            units=self.unit or "none",
            healthy="; ".join(healthy) or None,
            generations=self.elsewhere,
            example=self.example or f"rcdiag score rollouts.parquet --json | jq {path}",
            see=(self.family.slug, *self.see),
        )

    def value(self, suite: Suite) -> MetricValue:
        """Return value and 95% interval on one suite's tokens, without a level."""
        return measured([self], suite)[0]

    def guide_on(self, suite: Suite) -> Guide | None:
        """Return the guide that judges the metric on one suite's tokens; None if there is none."""
        if self.guide_for is None:
            return self.guide
        with np.errstate(all="ignore"):
            return self.guide_for(suite)

    def without_replicates(self, suite: Suite) -> tuple[float, Interval]:
        """Return the value, and its interval if that needs no replicates."""
        if self.from_suite is None:
            assert self.from_totals is not None
            value = float(self.from_totals(suite.point)[0])
            if self.counts is None or np.isnan(value):
                return value, NONE
            return value, share_interval(suite.rows.column(self.counts), suite.sizes(self.level))
        if self.of_log_ratios and np.isnan(suite.log_ratio_sum):
            return np.nan, NONE
        return self.from_suite(suite)

    def replicates(self, suite: Suite, value: float) -> JackknifeReplicates | None:
        """Return the metric without each cluster in turn; None if its interval needs none."""
        if self.from_totals is None or self.counts is not None:
            return None
        if not np.isfinite(value) or suite.clusters < 2:
            return None
        left_out = self.from_totals(suite.left_out)
        return JackknifeReplicates(value, left_out, self.bound, suite.sizes(self.level))

    def as_result(self, suite: Suite, value: float, interval: Interval) -> MetricValue:
        """Return the metric as results have it; without a value if it is undefined on the data."""
        if np.isnan(value) and np.isfinite(suite.log_ratio_sum):
            return MetricValue(value=None)  # the NaN is not due to the table's values
        low, high = interval
        expected = None if self.expects is None else self.expects(suite)
        of = None if self.expects is None else suite.rounding.precisions
        return MetricValue(value=value, low=low, high=high, expected=expected, expected_of=of)

    def as_observable(self, suite: Suite, low: float | None, high: float | None) -> Interval:
        """Return the interval with the end on the side of rare large ratios that the data support.

        That end is None if the second moment of the number's ratios cannot be observed. It stays
        as it is if all ratios are equal up to rounding.
        """
        if low is None or high is None or high - low <= 1e-12:
            return low, high
        if self.giants is not None and not is_observable(suite, self.giants):
            return (low, None) if self.giants_move == "high" else (None, high)
        if self.beyond_sample is None:
            return low, high
        if self.giants_move == "low":
            return self.beyond_sample(suite, low), high
        end = self.beyond_sample(suite, high)
        return low, end if np.isfinite(end) else None


def measured(metrics: Sequence[Metric], suite: Suite) -> list[MetricValue]:
    """Return values and 95% intervals of metrics on one suite's tokens, without levels.

    Intervals from left-out clusters are computed together, which takes a fifth of the time.
    """
    # Ratios out of range are inf or 0, and undefined values NaN, so no warning is needed.
    with np.errstate(all="ignore"):
        values, intervals = [], []
        for metric in metrics:
            value, interval = metric.without_replicates(suite)
            values.append(value)
            intervals.append(interval)
        of_clusters = {
            number: replicates
            for number, (metric, value) in enumerate(zip(metrics, values, strict=True))
            if (replicates := metric.replicates(suite, value)) is not None
        }
        made = jackknife_intervals(list(of_clusters.values()))
        for number, ends in zip(of_clusters, made, strict=True):
            intervals[number] = metrics[number].as_observable(suite, *ends)
        return [
            metric.as_result(suite, value, interval)
            for metric, value, interval in zip(metrics, values, intervals, strict=True)
        ]


class MetricRegistry(Registry[Metric]):
    """Metrics by name, together with the sums that only they need."""

    def _register(self, definition: Metric) -> None:
        """Register a metric, and the sums that a pass over a table must compute for it."""
        super()._register(definition)
        TOKEN_SUMS.ship(definition.token_sums)
        SEQUENCE_SUMS.ship(definition.sequence_sums)

    def remove(self, name: str) -> None:
        """Remove a metric and its own sums."""
        definition = self[name]
        super().remove(name)
        for token_sum in definition.token_sums:
            TOKEN_SUMS.remove(token_sum.name)
        for sequence_sum in definition.sequence_sums:
            SEQUENCE_SUMS.remove(sequence_sum.name)


FAMILIES: Registry[MetricFamily] = Registry("family of metrics")
METRICS = MetricRegistry("metric")


MAGNITUDE = MetricFamily(
    name="magnitude",
    question="How far apart are the two policies?",
    slug="mismatch-above-guide",
    fix="see which tokens and steps carry it; score other precisions of the same model to tell "
    "engine from precision",
)
OVERLAP = MetricFamily(
    name="overlap",
    question="How many samples are left after importance weighting?",
    slug="little-overlap",
    fix="weights of whole sequences are of little use at this mismatch and length; lessen the "
    "mismatch, or correct by token",
)
TAIL = MetricFamily(
    name="tail",
    question="How much depends on few tokens or sequences?",
    slug="heavy-tail",
    fix="look at the worst tokens and sequences in the report: one cause often explains them all",
)
VALIDITY = MetricFamily(
    name="validity",
    question="Were the tokens drawn from the recorded behavior policy?",
    slug="behavior-is-not-the-sampler",
    fix="no correction helps while the recorded log-probs are not those of the distribution that "
    "sampled: check temperature, top-p, penalties, weights and alignment; log-probs that were "
    "scored again are not",
    gate=True,
)

FAMILIES.ship((MAGNITUDE, OVERLAP, TAIL, VALIDITY))
