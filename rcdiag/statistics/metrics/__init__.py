"""The mismatch metrics, family by family, in the order in which a reader should see them.

Direction everywhere: log_ratio = log target - log behavior, in nats; tokens are taken to be
sampled by the behavior policy. To add a metric: one entry in its family's file.

A suite -> every metric with its interval and level.
"""

from __future__ import annotations

from dataclasses import dataclass

from rcdiag.results import MetricValue
from rcdiag.statistics.metrics.divergences import DIVERGENCES
from rcdiag.statistics.metrics.log_ratios import LOG_RATIOS
from rcdiag.statistics.metrics.metric import Metric
from rcdiag.statistics.metrics.overlap import OVERLAP
from rcdiag.statistics.metrics.probabilities import PERPLEXITIES, PROBABILITIES
from rcdiag.statistics.metrics.tail import TAIL
from rcdiag.statistics.metrics.validity import VALIDITY
from rcdiag.statistics.suite import Suite, SuiteState


@dataclass(frozen=True, slots=True)
class Family:
    """Metrics that answer one question; the worst family decides the verdict, never an average."""

    question: str
    metrics: dict[str, Metric]
    slug: str  # of the finding when one of them is beyond its guide
    fix: str
    gate: bool = False  # to be settled before anything else is worth a look


FAMILIES: dict[str, Family] = {
    "magnitude": Family(
        "How far apart are the two policies?",
        {**DIVERGENCES, **LOG_RATIOS, **PROBABILITIES, **PERPLEXITIES},
        "mismatch-above-guide",
        "see which tokens and steps carry it; score other precisions of the same model to tell "
        "engine from precision",
    ),
    "overlap": Family(
        "How many samples are left after importance weighting?",
        OVERLAP,
        "little-overlap",
        "weights of whole sequences are of little use at this mismatch and length; lessen the "
        "mismatch, or correct by token",
    ),
    "tail": Family(
        "How much hangs on few tokens or sequences?",
        TAIL,
        "heavy-tail",
        "look at the worst tokens and sequences in the report: one cause often explains them all",
    ),
    "validity": Family(
        "Were the tokens drawn from the recorded behavior policy?",
        VALIDITY,
        "behavior-is-not-the-sampler",
        "no correction helps before this: check that the behavior log-probs are those of the law "
        "that sampled (temperature, top-p, penalties, weights, alignment); log-probs that were "
        "scored again are not",
        gate=True,
    ),
}

METRICS: dict[str, Metric] = {
    name: metric for family in FAMILIES.values() for name, metric in family.metrics.items()
}


def mismatch(state: SuiteState, seed: int) -> dict[str, MetricValue]:
    """Value, 95% interval and level of each metric on the tokens of one state."""
    suite = Suite(state, seed)
    return {name: metric.value(suite) for name, metric in METRICS.items()}
