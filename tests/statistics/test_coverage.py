"""Do nominal 95% intervals hold the truth 95 times in 100? `pytest -m slow tests/statistics`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from rcdiag.results import MetricValue
from rcdiag.statistics.intervals import ratio_errors, skewed_t_quantile, t_quantile
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.ratios import k3
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.segments import segment_sum
from tests.statistics.clustered import PROMPTS, Truth, clustered_pair

# Standard errors of a coverage of 0.95 over 1,000 and 400 runs: 0.007 and 0.011.
LEAST, MOST = 0.93, 0.97
# By the simulation that `clustered` names: its shares have standard errors of up to 0.034 if they
# are of 200 runs, as they suggest, being multiples of 0.5%.
TOKEN, SEQUENCE = "k3 by token error", "k3 by sequence error"
FINGERPRINT = {
    True: {TOKEN: 0.095, SEQUENCE: 0.61},
    False: {TOKEN: 0.355, SEQUENCE: 0.955},
}
BIN = "0.01-0.1"  # of behavior probabilities: its mean log-ratio


def holds(value: MetricValue, truth: float) -> bool:
    assert value.low is not None
    assert value.high is not None
    return bool(value.low <= truth <= value.high)


def naive(pair: PolicyPair, truth: float) -> dict[str, bool]:
    """Does the mean k3 -+ 1.96 errors hold the truth, tokens or sequences taken as independent?"""
    values = k3(pair.values.ratios)
    mean = values.mean()
    sums = segment_sum(values, pair.lengths)[:, None]
    errors = {
        TOKEN: values.std() / np.sqrt(len(values)),
        SEQUENCE: ratio_errors(sums, pair.lengths[:, None].astype(float))[0][0],
    }
    reach = float(norm.ppf(0.975))
    return {name: bool(abs(mean - truth) <= reach * error) for name, error in errors.items()}


def own(pair: PolicyPair, truth: dict[str, float], seed: int) -> dict[str, bool]:
    """Does each interval of ours hold the truth?"""
    suite = Suite(SuiteState.of(pair), seed)
    found = {name: holds(METRICS[name].value(suite), value) for name, value in truth.items()}
    bins = finished(Profiles.of(pair))["behavior_probability"].bins
    (only,) = [each for each in bins if each.label == BIN]
    return {**found, BIN: holds(only.log_ratio_mean, -truth["k1_kl"])}


def coverage_of(prompts: int, runs: int, prompt_effects: bool = True) -> dict[str, float]:
    """Share of the runs in which each interval holds the truth."""
    truth = Truth.make(prompt_effects).of_metrics()
    hits: Counter[str] = Counter()
    for seed in range(runs):
        pair = clustered_pair(seed, prompts, prompt_effects)
        hits.update({**own(pair, truth, seed), **naive(pair, truth["k3_kl"])})
    found = {name: count / runs for name, count in hits.items()}
    print("\n".join(f"{name}: {share:.3f}" for name, share in found.items()))  # noqa: T201
    assert len(found) == len(truth) + 3
    return found


def test_the_truth_is_near_what_a_large_table_has():
    suite = Suite(SuiteState.of(clustered_pair(10**6, 2000)), 0)
    for name, truth in Truth.make().of_metrics().items():
        found = METRICS[name].value(suite)
        assert found.low is not None
        assert found.high is not None
        assert abs(found.value - truth) < found.high - found.low < 0.35 * abs(truth), name


def test_the_t_for_skewed_clusters_is_that_of_exponential_numbers():
    """Their mean is within t standard errors 95 times in 100; Student's t is not enough."""
    random = np.random.default_rng(0)
    values = random.exponential(size=(60, 100_000)) - 1.0
    wanted = np.quantile(np.abs(values.mean(0) / values.std(0, ddof=1)) * np.sqrt(60), 0.95)
    # The moments of all samples together: skewness 2, excess kurtosis 6.
    away = values[:, :2000].ravel()
    more = (skewed_t_quantile(away[:, None])[0] - t_quantile(len(away))) * len(away) / 60
    assert t_quantile(60) + more == pytest.approx(wanted, abs=0.015)
    assert t_quantile(60) < wanted - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("prompt_effects", [True, False])
def test_intervals_of_the_toy_hold_the_truth_as_often_as_theory_says(prompt_effects):
    found = coverage_of(PROMPTS, 1000, prompt_effects)
    by_theory = FINGERPRINT[prompt_effects]
    assert {name: found.pop(name) for name in by_theory} == pytest.approx(by_theory, abs=0.03)
    assert {name: share for name, share in found.items() if not LEAST <= share <= MOST} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "runs"), [(30, 1000), (300, 400)])
def test_intervals_of_fewer_and_of_more_prompts_hold_the_truth_as_often(prompts, runs):
    found = coverage_of(prompts, runs)
    assert max(found.pop(name) for name in (TOKEN, SEQUENCE)) < 0.7
    assert {name: share for name, share in found.items() if not LEAST <= share <= MOST} == {}
