"""The formulas behind the intervals against scipy and textbooks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, kurtosis, norm, skew, spearmanr, t

from rcdiag.statistics.intervals import (
    effective_clusters,
    errors_and_reaches,
    jackknife_interval,
    ratio_errors,
    ratio_interval,
    share_interval,
    standard_error,
    student_quantile,
    t_quantile,
    too_few,
)
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.suite import Suite
from tests.builders import make_state


@pytest.mark.parametrize("clusters", [4, 12, 60])
def test_interval_lengths_are_those_of_halls_transformation(clusters):
    """The transformed ends are the quantile and its opposite."""
    sample = np.random.default_rng(2).lognormal(0.0, 1.0, size=clusters)
    away = sample - sample.mean()
    error, down, up = (item[0] for item in errors_and_reaches(away[:, None], clusters))
    assert error == pytest.approx(sample.std(ddof=1) / np.sqrt(clusters))
    g = skew(sample, bias=False) / np.sqrt(clusters)
    flat = kurtosis(sample, fisher=False)

    def transformed(at: float) -> float:
        return at + g * at**2 / 3 + g**2 * at**3 / 27 + g / 6

    z = norm.ppf(0.975)
    skewness = clusters * g**2 * (z**4 + 2 * z**2 - 3) / 18
    more = z * (skewness - (flat - 3) * (z**2 - 3) / 12) / clusters
    expected = t.ppf(0.975, clusters - 1) + more
    assert transformed(down) == pytest.approx(expected)
    assert transformed(-up) == pytest.approx(-expected)
    assert up > down > 0.0  # the sample is skewed to the right


def test_influences_without_skewness_give_symmetric_intervals():
    away = np.array([[-1.0], [1.0]] * 10)
    _, down, up = errors_and_reaches(away, 20)
    assert down[0] == pytest.approx(up[0])
    # Their kurtosis is 1, the minimum; degrees of freedom are still Student's.
    assert down[0] == pytest.approx(t.ppf(0.975, 19) + more_of(kurtosis=1.0) / 20)


def more_of(kurtosis: float) -> float:
    z = norm.ppf(0.975)
    return -z * (kurtosis - 3) * (z**2 - 3) / 12


def test_degrees_of_freedom_count_the_clusters_that_hold_the_data():
    """Four clusters hold nearly all data, and their means vary as much as those of small ones."""
    sizes = np.array([1000.0] * 4 + [1.0] * 396)[:, None]
    signs = np.where(np.arange(400) % 2, -1.0, 1.0)[:, None]
    _, down, up = errors_and_reaches(sizes * signs, 400, sizes)
    assert up[0] == pytest.approx(t.ppf(0.975, 3), rel=0.02)
    assert down[0] == pytest.approx(up[0])
    _, _, equal = errors_and_reaches(signs, 400)
    assert equal[0] == pytest.approx(t.ppf(0.975, 399), rel=0.01)


def test_effective_clusters_match_a_simulated_variance():
    assert effective_clusters(np.full((7, 1), 3.0)) == pytest.approx(7.0)
    assert effective_clusters(np.array([1000.0] * 4 + [1.0] * 396)) == pytest.approx(4.0, rel=1e-3)
    # The estimated variance of a mean of 15 unequal clusters, as a chi-squared
    # number: its degrees of freedom are 2 mean^2 / variance.
    sizes = np.array([40.0, 40.0] + [2.0] * 13)
    squares = np.square(sizes * np.random.default_rng(0).standard_normal((400_000, 15))).sum(axis=1)
    assert effective_clusters(sizes) == pytest.approx(
        2.0 * squares.mean() ** 2 / squares.var(), rel=0.02
    )


@pytest.mark.parametrize(("sizes", "few"), [([40.0] + [2.0] * 7, True), ([40.0, 40.0, 2.0], False)])
def test_one_cluster_with_nearly_all_data_has_no_interval(sizes, few):
    sizes = np.array(sizes)
    events = np.arange(len(sizes)) % 2.0
    left_out = np.random.default_rng(0).standard_normal(len(sizes))
    assert too_few(sizes) == few
    assert (jackknife_interval(1.0, left_out, None, sizes) == (None, None)) == few
    assert (share_interval(events, sizes) == (None, None)) == few
    low, _ = ratio_interval(left_out[:, None] + sizes[:, None], sizes[:, None])
    assert np.isnan(low[0]) == few


def test_the_interval_of_a_share_covers_it_for_clusters_with_different_rates():
    """15 clusters with exponential rates; a Poisson count of effective events covers only 90%."""
    random = np.random.default_rng(0)
    sizes, rate, hits = np.full(15, 1000.0), 0.01, 0
    for _ in range(1000):
        events = random.poisson(rate * random.exponential(size=15) * sizes).astype(float)
        low, high = share_interval(events, sizes)
        hits += low <= rate <= high
    assert 0.93 <= hits / 1000 <= 0.98


@pytest.mark.parametrize("count", [0, 1, 2, 6, 40])
def test_events_of_different_clusters_have_the_exact_interval_of_poisson(count):
    events, sizes = np.zeros(4000), np.full(4000, 800.0)
    events[:count] = 1.0
    low, high = share_interval(events, sizes)
    total = sizes.sum()
    assert high == pytest.approx(chi2.ppf(0.975, 2 * count + 2) / 2 / total, rel=0.01)
    exact = chi2.ppf(0.025, 2 * count) / 2 / total if count else 0.0
    assert low == pytest.approx(exact, rel=0.5 if count == 1 else 0.1)


def test_more_rare_events_never_lower_the_upper_end():
    ends = []
    for count in range(40):
        events = np.zeros(80)
        events[:count] = 1.0
        ends.append(share_interval(events, np.full(80, 800.0))[1])
    assert ends == sorted(ends)
    in_one_cluster = [
        share_interval(np.eye(80)[0] * count, np.full(80, 800.0))[1] for count in (0, 1, 5, 100)
    ]
    assert in_one_cluster == sorted(in_one_cluster)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_duplicated_rows_have_the_same_interval_of_a_share(count):
    events, sizes = np.zeros(80), np.full(80, 800.0)
    events[:count] = 1.0
    once, twice = share_interval(events, sizes), share_interval(2.0 * events, 2.0 * sizes)
    assert twice == pytest.approx(once, rel=0.05)


def test_noise_within_clusters_gives_more_degrees_of_freedom_than_differences():
    random = np.random.default_rng(0)
    sizes = np.exp(random.normal(0.0, 1.0, (400, 1)))
    noise = random.normal(size=(400, 1))
    between, within = (errors_and_reaches(sizes**p * noise, 400, sizes)[2] for p in (1.0, 0.5))
    assert within[0] < between[0]


def test_the_interval_of_a_bounded_metric_stays_within_the_bound():
    random = np.random.default_rng(4)
    sample = random.lognormal(0.0, 1.5, size=8)
    left_out = (sample.sum() - sample) / 7
    plain = jackknife_interval(float(sample.mean()), left_out)
    low, high = jackknife_interval(float(sample.mean()), left_out, 0.0)
    assert plain[0] < low
    assert 0.0 < low < sample.mean() < high
    mirrored = jackknife_interval(1.0 - float(sample.mean()), 1.0 - left_out, 1.0)
    assert mirrored == pytest.approx((1.0 - high, 1.0 - low))


def test_a_distance_from_one_cluster_still_has_an_interval():
    left_out = np.array([0.0, 0.11, 0.11, 0.11, 0.11])
    low, high = jackknife_interval(0.1, left_out, 0.0)
    assert 0.0 <= low < 0.1 < high


@pytest.mark.parametrize("digits", [1, 12])
def test_spearmans_interval_is_that_of_a_jackknife(digits):
    """Equal to first order, since ranks change without a cluster. With one digit most tie."""
    random = np.random.default_rng(3)
    behavior = random.uniform(0.06, 0.94, size=(60, 20)).round(digits)
    target = np.clip(behavior + random.normal(0, 0.1, behavior.shape), 0.06, 0.94).round(digits)
    inside = ((behavior > 0.05) & (behavior < 0.95) & (target > 0.05) & (target < 0.95)).all()
    assert inside
    kept = [np.arange(60) != item for item in range(60)]
    left_out = np.array(
        [spearmanr(behavior[keep].ravel(), target[keep].ravel()).statistic for keep in kept]
    )
    value = spearmanr(behavior.ravel(), target.ravel()).statistic
    result = METRICS["prob_spearman"].value(Suite(make_state(np.log(behavior), np.log(target))))
    assert result.value == pytest.approx(value)
    assert (result.low, result.high) == pytest.approx(
        jackknife_interval(value, left_out, 1.0), rel=2e-3
    )


@given(st.floats(1e-200, 1e200))
def test_intervals_scale_with_the_values(scale):
    sample = np.random.default_rng(0).lognormal(0.0, 1.0, size=30)
    left_out = (sample.sum() - sample) / 29
    for bound in (None, 0.0):
        expected = jackknife_interval(float(sample.mean()), left_out, bound)
        result = jackknife_interval(float(sample.mean()) * scale, left_out * scale, bound)
        assert result == pytest.approx(tuple(end * scale for end in expected), rel=1e-6)


def test_a_jackknife_error_of_a_mean_is_the_textbook_one():
    sample = np.random.default_rng(0).normal(size=25)
    left_out = (sample.sum() - sample) / 24
    assert standard_error(left_out) == pytest.approx(sample.std(ddof=1) / 5)


def test_a_ratio_error_of_equal_clusters_is_that_of_a_mean():
    means = np.random.default_rng(0).normal(size=(25, 1))
    error, clusters = ratio_errors(means * 4, np.full((25, 1), 4.0))
    assert error[0] == pytest.approx(means.std(ddof=1) / 5)
    assert clusters[0] == 25


def test_a_ratio_error_is_that_of_the_jackknife():
    """The last cluster has no token in a bin, and does not count there."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 9, (25, 1)).astype(float)
    sums = sizes * random.normal(size=(25, 1))
    left_out = (sums.sum() - sums[:, 0]) / (sizes.sum() - sizes[:, 0])
    away = left_out - sums.sum() / sizes.sum()
    expected = np.sqrt(24 / 25 * np.square(away).sum())
    for absent in ([], [[0.0]]):
        more = np.array(absent).reshape(-1, 1)
        error, clusters = ratio_errors(np.vstack([sums, more]), np.vstack([sizes, more]))
        assert error[0] == pytest.approx(expected)
        assert clusters[0] == 25


def test_few_clusters_use_students_quantile():
    assert t_quantile(5) == pytest.approx(t.ppf(0.975, 4))
    assert t_quantile(5) > 1.4 * t_quantile(10_000)


def test_quantiles_of_students_t_have_the_shape_of_the_degrees_of_freedom():
    assert student_quantile(4, 0.025) == pytest.approx(2.7764451051977987)
    assert student_quantile([[4.0, 5.0], [6.0, 7.5]], 0.025).shape == (2, 2)
    assert student_quantile(np.inf, 0.025) == pytest.approx(1.959963984540054, rel=1e-14)
    assert np.isnan(student_quantile([0.0, 0.99, np.nan], 0.025)).all()
