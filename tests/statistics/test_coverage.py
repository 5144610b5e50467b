"""Do nominal 95% intervals hold the truth 95 times in 100? `pytest -m slow tests/statistics`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from rcdiag.diagnosis.guides import judged_metric
from rcdiag.results import MetricValue
from rcdiag.statistics.intervals import (
    LEAST_EFFECTIVE,
    effective_clusters,
    errors_and_reaches,
    ratio_errors,
    ratio_interval,
    t_quantile,
)
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.ratios import k3
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.trajectories import segment_sum
from tests.statistics.clustered import PROMPTS, Truth, clustered_pair
from tests.statistics.generators import FAR_APART, GENERATORS, RARE, coverage

# Standard errors of a coverage of 0.95 over 1,000 and 400 runs: 0.007 and 0.011.
LEAST, MOST = 0.93, 0.97
# By the simulation that `clustered` names: its shares have standard errors of up to 0.034 if they
# are of 200 runs, as they suggest, being multiples of 0.5%.
TOKEN, SEQUENCE = "k3 by token error", "k3 by sequence error"
FINGERPRINT = {
    True: {TOKEN: 0.095, SEQUENCE: 0.61},
    False: {TOKEN: 0.355, SEQUENCE: 0.955},
}
BIN = "0.01-0.1"  # with respect to behavior probabilities: its mean log-ratio


def holds(value: MetricValue, truth: float) -> bool:
    assert value.low is not None
    assert value.high is not None
    return bool(value.low <= truth <= value.high)


def naive(pair: PolicyPair, truth: float) -> dict[str, bool]:
    """Tell whether naive 95% intervals of the mean k3, by token and by sequence, hold the truth."""
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
    """Does each of rcdiag's intervals cover the true value?"""
    suite = Suite(SuiteState.of(pair))
    result = {name: holds(METRICS[name].value(suite), value) for name, value in truth.items()}
    bins = finished(Profiles.of(pair))["behavior_probability"].bins
    (only,) = [item for item in bins if item.label == BIN]
    return {**result, BIN: holds(only.log_ratio_mean, -truth["k1_kl"])}


def coverage_of(prompts: int, runs: int, prompt_effects: bool = True) -> dict[str, float]:
    """Return the share of runs in which each interval covers the true value."""
    truth = Truth.make(prompt_effects).of_metrics()
    hits: Counter[str] = Counter()
    for seed in range(runs):
        pair = clustered_pair(seed, prompts, prompt_effects)
        hits.update({**own(pair, truth, seed), **naive(pair, truth["k3_kl"])})
    result = {name: count / runs for name, count in hits.items()}
    print("\n".join(f"{name}: {share:.3f}" for name, share in result.items()))  # noqa: T201
    assert len(result) == len(truth) + 3
    return result


def test_the_true_values_are_near_those_of_a_large_table():
    suite = Suite(SuiteState.of(clustered_pair(10**6, 2000)))
    for name, truth in Truth.make().of_metrics().items():
        result = METRICS[name].value(suite)
        assert result.low is not None
        assert result.high is not None
        assert abs(result.value - truth) < result.high - result.low < 0.35 * abs(truth), name


def test_the_interval_of_an_exponential_mean_covers_it_unlike_students():
    """Misses are on both sides, while nearly all of Student's misses are on one."""
    count = 15
    values = np.random.default_rng(0).exponential(size=(count, 20_000))
    mean = values.mean(axis=0)
    # Without one value a mean changes by (value - mean) / (n - 1).
    error, down, up = errors_and_reaches(values - mean, count)
    assert np.allclose(error, values.std(axis=0, ddof=1) / np.sqrt(count))
    below, above = np.mean(mean - down * error > 1.0), np.mean(mean + up * error < 1.0)
    assert LEAST <= 1.0 - below - above <= MOST
    assert 0.005 < below < above < 0.05
    reach = t_quantile(count) * error
    assert np.mean(mean - reach > 1.0) < 0.006
    assert np.mean(mean + reach < 1.0) > 0.06


@pytest.mark.parametrize("groups", [8, 40])
def test_the_interval_of_a_quotient_covers_it_for_unequal_clusters(groups):
    random = np.random.default_rng(1)
    sizes = np.exp(random.normal(0.0, 1.0, (groups, 20_000)))
    sums = sizes + np.sqrt(sizes) * random.standard_normal(sizes.shape)
    few = effective_clusters(sizes) < LEAST_EFFECTIVE
    low, high = ratio_interval(sums, sizes)
    assert np.array_equal(np.isnan(low), few)
    assert few.mean() < (0.25 if groups == 8 else 0.03)
    sums, sizes, low, high = sums[:, ~few], sizes[:, ~few], low[~few], high[~few]
    assert LEAST <= np.mean((low <= 1.0) & (high >= 1.0)) <= 0.98
    # Cochran's error with unscaled residuals is too small.
    value = sums.sum(axis=0) / sizes.sum(axis=0)
    squares = np.square(sums - value * sizes).sum(axis=0) * groups / (groups - 1)
    reach = t_quantile(groups) * np.sqrt(squares) / sizes.sum(axis=0)
    assert np.mean(np.abs(value - 1.0) <= reach) < np.mean((low <= 1.0) & (high >= 1.0)) - 0.005


# Of 150 tables: the intervals of bootstrapped ratios lay above the truth in 13% to 30%.
@pytest.mark.parametrize("distribution", ["gaussian", "student", "unequal"])
def test_sequence_ess_is_not_above_what_is_true(distribution):
    shares = coverage(GENERATORS[distribution], 15, 150, ["ess_seq", "k2_kl", "k3_kl"])
    assert shares["ess_seq"]["truth_below"] <= 0.08
    assert shares["ess_seq"]["holds"] >= 0.90
    assert shares["ess_seq"]["without_both_ends"] <= 0.2
    assert shares["k2_kl"]["holds"] >= 0.90
    assert shares["k3_kl"]["holds"] >= 0.90


@pytest.mark.parametrize("distribution", FAR_APART)
def test_an_ess_that_the_sample_cannot_show_has_no_interval(distribution):
    """Dependent tokens and heavy tails: the true ESS is below 1e-7, samples give 0.05 to 0.3."""
    generator = FAR_APART[distribution]
    for seed in range(15):
        suite = Suite(SuiteState.of(generator.pair(seed, 15)))
        value = judged_metric(METRICS["ess_seq"], suite)
        assert value.high >= generator.truth["ess_seq"]
        assert value.low is None or value.low <= generator.truth["ess_seq"] < value.high
        if generator.truth["ess_seq"] < 1e-7:
            assert value.low is None
            guide = METRICS["ess_seq"].guide_on(suite)
            assert value.level == ("error" if value.high <= guide.error else "unknown")
            squares = judged_metric(METRICS["chi2_seq"], suite)
            assert squares.high is None
            assert squares.level == "unknown"


@pytest.mark.parametrize(
    "prompt_effects",
    [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.weekly)],
)
def test_coverage_on_the_toy_distribution_is_as_expected(prompt_effects):
    result = coverage_of(PROMPTS, 1000, prompt_effects)
    by_theory = FINGERPRINT[prompt_effects]
    assert {name: result.pop(name) for name in by_theory} == pytest.approx(by_theory, abs=0.03)
    too_long = {name for name, share in result.items() if share > MOST}
    assert too_long <= set(CAUTIOUS)
    assert {name: share for name, share in result.items() if share < LEAST} == {}


@pytest.mark.weekly
@pytest.mark.parametrize(("prompts", "runs"), [(30, 1000), (300, 400)])
def test_coverage_with_fewer_and_more_prompts_is_as_expected(prompts, runs):
    result = coverage_of(prompts, runs)
    assert max(result.pop(name) for name in (TOKEN, SEQUENCE)) < 0.7
    too_long = {name for name, share in result.items() if share > MOST}
    assert too_long <= set(CAUTIOUS)
    assert {name: share for name, share in result.items() if share < LEAST} == {}


# Metrics whose lower or upper end accounts for huge ratios, or is not given.
CAUTIOUS = ("ess_token", "ess_seq", "chi2_token", "chi2_seq", "ratio_mean_seq")
SAMPLING = 0.01  # of a coverage counted in 500 tables, one standard error
UNEQUAL = ("unequal", "both", "giants")  # sizes of groups: most intervals are somewhat too long


def too_short(shares: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the coverage of metrics whose intervals, where given, hold the truth too seldom."""
    holds = {name: share["holds"] for name, share in shares.items() if share["given"]}
    return {name: share for name, share in holds.items() if share < LEAST - 2.0 * SAMPLING}


@pytest.mark.weekly
@pytest.mark.parametrize("groups", [8, 15, 40, 150])
@pytest.mark.parametrize("distribution", RARE)
def test_intervals_reckon_with_tokens_that_the_table_does_not_have(distribution, groups):
    """By the sample alone k3 has 0.85 to 0.93, chi2_token down to 0.77, ESS 0.62 to 0.88."""
    assert too_short(coverage(RARE[distribution], groups, 500)) == {}


@pytest.mark.weekly
@pytest.mark.parametrize("groups", [8, 15, 40, 150])
@pytest.mark.parametrize("distribution", GENERATORS)
def test_coverage_of_every_distribution_is_as_stated(distribution, groups):
    """`coverage` asserts that a metric without an interval has the level unknown."""
    shares = coverage(GENERATORS[distribution], groups, 500)
    assert too_short(shares) == {}
    too_long = {
        name: share["holds"]
        for name, share in shares.items()
        if share["holds"] > MOST + 2.0 * SAMPLING
        and not name.startswith((*CAUTIOUS, "ratio_outside"))
    }
    assert distribution in UNEQUAL or too_long == {}
    if distribution == "giants" and groups == 8:  # one of them holds three quarters of the tokens
        assert {share["given"] for share in shares.values()} == {0.0}
    elif distribution not in ("unequal", "both"):
        assert {share["given"] for name, share in shares.items() if "chi2" not in name} == {1.0}
