"""Do nominal 95% intervals hold the truth 95 times in 100? `pytest -m slow tests/statistics`."""

from __future__ import annotations

from collections import Counter

import pytest

from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import Suite, SuiteState
from tests.statistics.clustered import Truth, clustered_block

# Standard errors of a coverage of 0.95 over 1,000 and 2,000 runs: 0.007 and 0.005.
LEAST, MOST = 0.93, 0.97

TRUTH = Truth.make()
OF_METRICS = TRUTH.of_metrics()
BIN = "mean log-ratio of a bin"


def covers(value: MetricValue, truth: float) -> bool:
    assert value.low is not None
    assert value.high is not None
    return value.low <= truth <= value.high


def coverage_of(prompts: int, runs: int) -> dict[str, float]:
    """Share of the runs in which each interval holds the truth."""
    hits: Counter[str] = Counter()
    for seed in range(runs):
        block = clustered_block(seed, prompts)
        suite = Suite(SuiteState.of(block), seed)
        for name, truth in OF_METRICS.items():
            hits[name] += covers(METRICS[name].value(suite), truth)
        bins = finished(Profiles.of(block))["behavior_probability"].bins
        (only,) = [each for each in bins if each.label == "0.01-0.1"]
        hits[BIN] += covers(only.log_ratio_mean, -OF_METRICS["k1_kl"])
    return {name: count / runs for name, count in hits.items()}


def test_the_truth_is_near_what_a_large_table_has():
    suite = Suite(SuiteState.of(clustered_block(10**6, 3000)), 0)
    for name, truth in OF_METRICS.items():
        found = METRICS[name].value(suite)
        assert found.low is not None
        assert found.high is not None
        assert abs(found.value - truth) < found.high - found.low < 0.35 * abs(truth), name


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "runs"), [(60, 2000), (300, 1000)])
def test_nominal_intervals_hold_the_truth_as_often_as_they_say(prompts, runs):
    found = coverage_of(prompts, runs)
    print("\n".join(f"{name}: {share:.3f}" for name, share in found.items()))  # noqa: T201
    outside = {name: share for name, share in found.items() if not LEAST <= share <= MOST}
    assert len(found) == len(OF_METRICS) + 1
    assert outside == {}
