"""A sequence table -> every metric with its interval and level."""

from __future__ import annotations

import numpy as np

from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS, Metric
from rcdiag.statistics.table import SequenceTable
from rcdiag.statistics.totals import Totals, resampled, totals

COVERAGE = 0.95


def mismatch(table: SequenceTable, seed: int) -> dict[str, MetricValue]:
    """Value, 95% cluster-bootstrap interval (percentile) and level of each metric."""
    point = totals(table)
    slices = resampled(table, seed)
    return {name: _value(metric, point, slices) for name, metric in METRICS.items()}


def _value(metric: Metric, point: Totals, slices: list[Totals]) -> MetricValue:
    value = float(metric.formula(point)[0])
    low, high = _interval(metric, slices) if np.isfinite(value) else (None, None)
    level = metric.guide.level(value) if metric.guide else None
    return MetricValue(value=value, low=low, high=high, level=level)


def _interval(metric: Metric, slices: list[Totals]) -> tuple[float | None, float | None]:
    """None where the metric has no replicates, or they are not all finite."""
    if not slices or not metric.resampled:
        return None, None
    replicates = np.concatenate([metric.formula(each) for each in slices])
    if not np.isfinite(replicates).all():
        return None, None
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail])
    return float(low), float(high)
