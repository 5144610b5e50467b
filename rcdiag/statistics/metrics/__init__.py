"""The mismatch metrics by family, in the order in which they are shown.

log_ratio = log target - log behavior, in nats, everywhere. To add a metric, add a `Metric` to the
tuple of its family, or call `METRICS.add(Metric(...))` from another package.
"""

from __future__ import annotations

from rcdiag.statistics.metrics.divergences import DIVERGENCES
from rcdiag.statistics.metrics.log_ratios import LOG_RATIOS
from rcdiag.statistics.metrics.metric import (
    BEHAVIOR_SAMPLED,
    BY_CLUSTERS,
    BY_FIT,
    FAMILIES,
    MAGNITUDE,
    METRICS,
    NO_INTERVAL,
    OVERLAP,
    SEQUENCES_SAMPLED,
    SYMMETRIC,
    TAIL,
    VALIDITY,
    Metric,
    MetricFamily,
    measured,
)
from rcdiag.statistics.metrics.overlap import OVERLAPS
from rcdiag.statistics.metrics.probabilities import PERPLEXITIES, PROBABILITIES
from rcdiag.statistics.metrics.tail import TAILS
from rcdiag.statistics.metrics.validity import VALIDITIES

__all__ = [
    "BEHAVIOR_SAMPLED",
    "BY_CLUSTERS",
    "BY_FIT",
    "FAMILIES",
    "MAGNITUDE",
    "METRICS",
    "NO_INTERVAL",
    "OVERLAP",
    "SEQUENCES_SAMPLED",
    "SYMMETRIC",
    "TAIL",
    "VALIDITY",
    "Metric",
    "MetricFamily",
    "measured",
    "metric_descriptions",
]

_MAGNITUDES = (*DIVERGENCES, *LOG_RATIOS, *PROBABILITIES, *PERPLEXITIES)
METRICS.ship((*_MAGNITUDES, *OVERLAPS, *TAILS, *VALIDITIES))


def metric_descriptions() -> dict[str, str]:
    """Return a paragraph on each metric (meaning, formula, unit), by name."""
    return {
        name: f"{metric.about} Unit: {metric.unit}." if metric.unit else metric.about
        for name, metric in METRICS.items()
    }
