"""The levels of metrics: each compared with its guide, on one set of tokens or many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.rules import level
from rcdiag.diagnosis.thresholds import HALF
from rcdiag.results.base import LEVELS, MetricValue
from rcdiag.results.diagnosis import GRAVEST, NOTHING_WRONG, Diagnosis
from rcdiag.results.guide import Guide
from rcdiag.statistics.intervals import too_few
from rcdiag.statistics.metrics import BY_CLUSTERS, METRICS, Metric, measured
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.token_batch import TokenBatch

# An interval that is wider than this share of the metric's range says next to nothing; rcdiag's
# proposal.
WIDEST_SHARE = HALF


def with_guide(value: MetricValue, guide: Guide | None) -> MetricValue:
    """Return a number with its level by `guide`; unchanged if that is None or the level unknown."""
    if guide is None or value.level == "unknown":
        return value
    return replace(value, level=level(guide, value.value, value.low, value.high))


def judged_share(share: MetricValue) -> MetricValue:
    """Return a share, with the level `unknown` if its interval is missing or too wide."""
    known = (
        share.low is not None and share.high is not None and share.high - share.low <= WIDEST_SHARE
    )
    return share if known or share.value is None else replace(share, level="unknown")


def judged(suite: Suite, metrics: Iterable[Metric] | None = None) -> dict[str, MetricValue]:
    """Return metrics, all by default, on one suite's tokens: value, 95% interval and level."""
    chosen = list(METRICS.values() if metrics is None else metrics)
    return {
        metric.name: _with_level(metric, value, suite)
        for metric, value in zip(chosen, measured(chosen, suite), strict=True)
    }


# These show whether the recorded policy sampled, which the diagnosis has already judged.
WHO_SAMPLED = ("ratio_mean_z", "kappa")
# Long responses and a few tokens with large ratios make these look bad in an honest run.
OF_LENGTH_AND_TAILS = ("ess_seq", "chi2_token", "khat_token", "khat_seq", "top_share")


def gravest(diagnosis: Diagnosis | None, pair: tuple[str, str]) -> str:
    """Return the worst level that a number of a pair can have under its diagnosis.

    What importance weights repair is no error, and what needs no repair is no warning, in either
    direction of the diagnosed pair. A diagnosis of another pair limits nothing.
    """
    if diagnosis is None or not _is_of(diagnosis, pair):
        return "error"
    return GRAVEST.get(diagnosis.verdict, "error")


def _is_of(diagnosis: Diagnosis, pair: tuple[str, str]) -> bool:
    """Tell whether a diagnosis judged these two policies, in either direction."""
    return {*(diagnosis.pair or {}).values()} == {*pair}


def under_diagnosis(
    values: Mapping[str, MetricValue], diagnosis: Diagnosis | None, pair: tuple[str, str]
) -> dict[str, MetricValue]:
    """Return a pair's metrics with the levels that they have under its diagnosis.

    No level is worse than `gravest`. Where rounding noise alone is named, it explains small
    effective samples and heavy tails, which then are `ok`. kappa and the z of E[ratio] are
    `unknown` unless the verdict is `broken`: whether the recorded policy sampled is decided by
    several estimates together, and a verdict that does not deny it must not stand beside a number
    that does. Their guides hold for light tails alone: a large mismatch lowers kappa to 0.12,
    ratios too rare to be in the sample make z negative, and coarse storage of log-probs moves both.
    """
    if diagnosis is None or not _is_of(diagnosis, pair) or diagnosis.verdict == "broken":
        return dict(values)
    worst = gravest(diagnosis, pair)
    rounding_alone = worst != "error" and all(
        cause.slug in NOTHING_WRONG for cause in diagnosis.causes
    )
    explained = OF_LENGTH_AND_TAILS if rounding_alone else ()

    def milder(name: str, value: MetricValue) -> MetricValue:
        if value.level not in ("warning", "error"):
            return value
        if name in WHO_SAMPLED:
            return replace(value, level="unknown")
        most = "ok" if name in explained else worst
        return replace(value, level=min(value.level, most, key=LEVELS.index))

    return {name: milder(name, value) for name, value in values.items()}


def without_numbers() -> dict[str, MetricValue]:
    """Return every metric without a value: too few rows have only finite numbers."""
    return {name: MetricValue(value=None) for name in METRICS}


def judged_metric(metric: Metric, suite: Suite) -> MetricValue:
    """Return one metric with its level: `unknown` too where no honest interval can be given.

    An interval over prompt groups needs at least two effective groups (`too_few`), and an end that
    depends on ratios too rare to be in the data is not given. Without an interval the number on
    more data may be anything, whether or not the metric has a guide; an interval with one end may
    still lie beyond a guide as a whole. A value outside the metric's range (`least`) is due to
    chance alone, and so is the part of an interval that lies there.
    """
    return _with_level(metric, metric.value(suite), suite)


def _with_level(metric: Metric, value: MetricValue, suite: Suite) -> MetricValue:
    """Return the value with its level and with its interval cut to the metric's range."""
    if value.value is None or math.isnan(value.value):
        return value
    # A mean that one token makes infinite is infinite however few rows there are.
    infinite = math.isinf(value.value)
    if metric.least is not None:
        if value.value < metric.least:
            return replace(value, low=None, high=None, level="unknown")
        if value.low is not None:
            value = replace(value, low=max(value.low, metric.least))
    if metric.most is not None and value.high is not None:
        value = replace(value, high=min(value.high, metric.most))
    few = metric.interval == BY_CLUSTERS and too_few(suite.sizes(metric.level))
    if (few or suite.clusters < metric.fewest_clusters) and not infinite:
        return replace(value, level="unknown")
    guide = metric.guide_on(suite)
    found = None if guide is None else level(guide, value.value, value.low, value.high)
    one_ended = guide is None and (value.low is None) != (value.high is None)
    # A guide that depends on the data may be far above an error by the metric's own: then an
    # interval is wide and still an error as a whole.
    is_error = guide is not None and {level(guide, value.low), level(guide, value.high)} == {
        "error"
    }
    if one_ended or (_is_wide(metric, value) and not is_error):
        found = "unknown"
    return replace(value, level=found)


def _is_wide(metric: Metric, value: MetricValue) -> bool:
    """Tell whether an interval says next to nothing: it is wider than what it is measured by.

    That is half of the metric's range, or else the way from 0 to an error.
    """
    if value.low is None or value.high is None:
        return False
    if metric.range is not None:
        if metric.guide is not None:
            return False
        least, most = metric.range
        return value.high - value.low > WIDEST_SHARE * (most - least)
    own = metric.guide
    return own is not None and own.around is None and value.high - value.low > own.error


# Means over tokens that measure the size of a mismatch and have a guide.
SIZES = (
    "k3_kl",
    "k2_kl",
    "exp_abs_log_ratio_mean",
    "ratio_deviation_mean",
    "prob_diff_mean",
)


def suite_of(case: Case) -> Suite:
    """Return the tokens of a case's pair as the metrics take them."""
    assert case.trainer is not None
    tokens = case.tokens
    rows = tokens.per_row > 0
    batch = TokenBatch(
        log_probs={case.sampler: tokens.sampler, case.trainer: tokens.trainer},
        lengths=tokens.per_row[rows],
        cluster=case.cluster[rows].astype(np.uint64),
        row=case.row[rows],
        token_id=tokens.token_id,
        position=tokens.position,
    )
    return Suite(SuiteState.of(PolicyPair(batch, case.sampler, case.trainer)))


def beyond_guides(suite: Suite) -> list[str]:
    """Return the names of `SIZES` that are beyond their guide on a suite's tokens.

    They are computed as in `score`, so that a verdict is never `healthy` where score has a warning
    or an error for the size of the mismatch.
    """
    sizes = [METRICS[name] for name in SIZES]
    return [
        metric.name
        for metric, value in zip(sizes, measured(sizes, suite), strict=True)
        if metric.guide and level(metric.guide, value.value) in ("warning", "error")
    ]
