"""Expectations under the behavior policy of a pair, where another policy sampled the tokens.

They are estimated with importance weights behavior / sampler where these are reliable; else the
number is null, with the level `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.guides import WHO_SAMPLED, judged
from rcdiag.diagnosis.thresholds import EQUAL, HALF
from rcdiag.results import MetricValue
from rcdiag.results.score import NOT_GIVEN, SAMPLED, WEIGHTED
from rcdiag.statistics.metrics import METRICS, SEQUENCES_SAMPLED, Metric
from rcdiag.statistics.metrics.tail import K_HAT_GUIDE
from rcdiag.statistics.second_moment import HARMLESS_ESS
from rcdiag.statistics.suite import Suite

UNKNOWN = MetricValue(value=None, level="unknown")


class BehaviorMeans(Struct, frozen=True):
    """How means under the behavior policy of a pair are estimated."""

    tokens: str  # SAMPLED, WEIGHTED or NOT_GIVEN
    sequences: str  # the same, of means over whole sequences

    def of(self, metric: Metric) -> str:
        """Return how to estimate a metric that needs samples of the behavior policy."""
        return self.sequences if metric.presupposes == SEQUENCES_SAMPLED else self.tokens


def behavior_means(
    behavior: str, sampler: str | None, weights: Mapping[str, MetricValue] | None
) -> BehaviorMeans:
    """Decide how to estimate means under `behavior` from tokens that `sampler` sampled.

    `weights` are the metrics of the pair sampler -> behavior, whose ratios are the weights; None
    where the sampler is not known or not among the policies.
    """
    if behavior == sampler:
        return BehaviorMeans(SAMPLED, SAMPLED)
    if weights is None:
        return BehaviorMeans(NOT_GIVEN, NOT_GIVEN)
    token, sequence = (
        WEIGHTED if _reliable(weights, level) else NOT_GIVEN for level in ("token", "seq")
    )
    return BehaviorMeans(token, sequence)


def _reliable(weights: Mapping[str, MetricValue], level: str) -> bool:
    """Tell whether a mean with these weights is reliable.

    The mean weight must be 1 (the weights belong to the distribution that sampled) and the
    effective sample size at least half of the sample; if it is below nine tenths, k-hat must be
    below 0.7 (Vehtari et al. 2024, JMLR 25(72), 3.2).
    """
    ess, k_hat = weights[f"ess_{level}"].value, weights[f"khat_{level}"].value
    mean = weights["ratio_mean"].value
    # Batch-normalised weights have a mean of 1 up to rounding, whatever its standard error.
    rounded = mean is not None and abs(mean - 1.0) <= EQUAL
    mean_is_one = rounded or weights["ratio_mean_z"].level != "error"
    if ess is None or not ess >= HALF or not mean_is_one:
        return False
    return ess >= HARMLESS_ESS or (k_hat is not None and k_hat < K_HAT_GUIDE.error)


def judged_pair(
    suite: Suite, weighted: Suite | None, means: BehaviorMeans
) -> dict[str, MetricValue]:
    """Return every metric of a pair: value, 95% interval and level.

    `weighted` has totals with weights behavior / sampler, for metrics that need samples of the
    behavior policy. Where that did not sample, numbers that show who sampled are not judged.
    """
    plain, reweighted = [], []
    for metric in METRICS.values():
        if metric.presupposes is None or means.of(metric) == SAMPLED:
            plain.append(metric)
        # Ranks, tails and extremes are read off all tokens, which have no weights.
        elif means.of(metric) == WEIGHTED and metric.from_totals is not None:
            reweighted.append(metric)
    values = judged(suite, plain)
    if weighted is not None:
        values |= {
            name: value
            for name, value in judged(weighted, reweighted).items()
            if value.value is not None and math.isfinite(value.value)
        }
    if means.tokens != SAMPLED:
        values |= {
            name: replace(values[name], level="unknown") for name in WHO_SAMPLED if name in values
        }
    return {name: values.get(name, UNKNOWN) for name in METRICS}
