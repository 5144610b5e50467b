"""The formulas behind the intervals against scipy and textbooks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import norm, spearmanr, t

from rcdiag.statistics.intervals import (
    bootstrap,
    ratio_errors,
    skewed_t_quantile,
    standard_error,
    t_quantile,
)
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.ranks import GROUPS
from rcdiag.statistics.suite import Suite
from tests.builders import make_state


@pytest.mark.parametrize("clusters", [4, 12, 60])
def test_bootstrap_intervals_are_scipys_bca_at_students_level(clusters):
    sample = np.random.default_rng(2).lognormal(0.0, 1.0, size=clusters)
    reach = skewed_t_quantile((sample - sample.mean())[:, None])[0]
    reach *= np.sqrt(clusters / (clusters - 1))
    level = 1 - 2 * norm.sf(reach)
    wanted = scipy_bootstrap((sample,), np.mean, confidence_level=level, rng=1, n_resamples=3000)
    left_out = (sample.sum() - sample) / (clusters - 1)
    found = bootstrap(float(sample.mean()), wanted.bootstrap_distribution, left_out)
    assert found == pytest.approx(tuple(wanted.confidence_interval), rel=1e-6)


def test_spearmans_interval_is_a_jackknife_over_groups_of_clusters():
    random = np.random.default_rng(3)
    behavior = np.log(random.uniform(0.06, 0.94, size=(50, 20)))
    target = np.log(np.clip(np.exp(behavior) + random.normal(0, 0.1, behavior.shape), 0.06, 0.94))
    group = np.arange(50) % GROUPS
    kept = [group != each for each in range(GROUPS)]
    left_out = [
        np.arctanh(spearmanr(behavior[keep].ravel(), target[keep].ravel()).statistic)
        for keep in kept
    ]
    error = np.sqrt((GROUPS - 1) * np.var(left_out))
    value = np.arctanh(spearmanr(behavior.ravel(), target.ravel()).statistic)
    reach = t.ppf(0.975, GROUPS - 1) * error
    found = METRICS["prob_spearman"].value(Suite(make_state(behavior, target), 0))
    ends = (found.low, found.high)
    assert ends == pytest.approx((np.tanh(value - reach), np.tanh(value + reach)))


@given(st.floats(1e-200, 1e200))
def test_bootstrap_intervals_go_with_the_scale(scale):
    random = np.random.default_rng(0)
    sample = random.lognormal(0.0, 1.0, size=30)
    replicates = sample[random.integers(30, size=(500, 30))].mean(axis=1)
    left_out = (sample.sum() - sample) / 29
    wanted = bootstrap(float(sample.mean()), replicates, left_out)
    found = bootstrap(float(sample.mean()) * scale, replicates * scale, left_out * scale)
    assert found == pytest.approx(tuple(end * scale for end in wanted), rel=1e-6)


def test_a_jackknife_error_of_a_mean_is_the_textbook_one():
    sample = np.random.default_rng(0).normal(size=25)
    left_out = (sample.sum() - sample) / 24
    assert standard_error(left_out) == pytest.approx(sample.std(ddof=1) / 5)


def test_a_ratio_error_of_equal_clusters_is_that_of_a_mean():
    means = np.random.default_rng(0).normal(size=(25, 1))
    error, clusters = ratio_errors(means * 4, np.full((25, 1), 4.0))
    assert error[0] == pytest.approx(means.std(ddof=1) / 5)
    assert clusters[0] == 25


def test_few_clusters_reach_as_far_as_student_says():
    assert t_quantile(5) == pytest.approx(t.ppf(0.975, 4))
    assert t_quantile(5) > 1.4 * t_quantile(10_000)
