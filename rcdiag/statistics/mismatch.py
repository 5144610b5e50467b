"""A suite -> every metric with its interval and level."""

from __future__ import annotations

from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.suite import Suite, SuiteState


def mismatch(state: SuiteState, seed: int) -> dict[str, MetricValue]:
    """Value, 95% interval and level of each metric on the tokens of one state."""
    suite = Suite(state, seed)
    return {name: metric.value(suite) for name, metric in METRICS.items()}
