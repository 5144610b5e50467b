"""Pareto k-hat against arviz-stats and published tables, and tails kept by a stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import genpareto, norm

from rcdiag.statistics.pareto import (
    LARGEST_SHAPE,
    UpperTail,
    k_hat,
    k_hat_error,
    reliable_below,
    squares_beyond,
)
from tests.builders import summed
from tests.statistics.oracle import pareto_k_hat


def fitted(log_ratio: np.ndarray) -> float:
    return k_hat(UpperTail.of(log_ratio))[0]


def pareto(k: float, size: int, seed: int) -> np.ndarray:
    """Draw log ratios log(u^-k), whose tail index is k."""
    return -k * np.log(np.random.default_rng(seed).uniform(size=size))


# Tails of 6 values and more: arviz-stats 1.3 has NaN for 5, whose first quartile is their least.
@pytest.mark.parametrize("size", [30, 100, 224, 225, 226, 1000, 50_000])
@pytest.mark.parametrize("k", [0.2, 0.7, 1.5])
def test_k_hat_is_that_of_arviz_stats(size, k):
    log_ratio = pareto(k, size, seed=0)
    assert fitted(log_ratio) == pytest.approx(pareto_k_hat(log_ratio), rel=1e-9)


@given(st.integers(0, 10**6), st.integers(30, 400), st.floats(0.01, 5.0))
def test_k_hat_is_that_of_arviz_stats_for_log_ratios_of_any_spread(seed, size, spread):
    log_ratio = np.random.default_rng(seed).normal(0.0, spread, size=size)
    assert fitted(log_ratio) == pytest.approx(pareto_k_hat(log_ratio), rel=1e-6)


@given(st.floats(-500.0, 500.0))
def test_k_hat_does_not_depend_on_the_scale_of_the_ratios(constant):
    log_ratio = pareto(0.6, 500, seed=0)
    assert fitted(log_ratio + constant) == pytest.approx(fitted(log_ratio), rel=1e-6)


@pytest.mark.parametrize(
    ("k", "published"), [(0.2, 0.225), (0.5, 0.509), (0.7, 0.701), (1.0, 0.938), (1.5, 1.496)]
)
def test_pareto_ratios_have_the_published_k_hat(k, published):
    values = [fitted(pareto(k, 20_000, seed)) for seed in range(30)]
    assert np.mean(values) == pytest.approx(published, abs=0.1)
    assert np.mean(values) == pytest.approx(k, abs=0.05)


@pytest.mark.parametrize(
    ("s", "published"),
    [(0.1, -0.06), (0.5, 0.14), (1.0, 0.28), (2.0, 0.66), (3.0, 1.08), (5.0, 1.84)],
)
def test_lognormal_ratios_have_the_published_k_hat(s, published):
    values = [
        fitted(np.random.default_rng(seed).normal(-(s**2) / 2, s, size=1024)) for seed in range(60)
    ]
    assert np.mean(values) == pytest.approx(published, abs=0.1)


def test_the_error_of_k_hat_is_its_spread_over_samples():
    result = [k_hat(UpperTail.of(pareto(0.7, 5000, seed))) for seed in range(200)]
    shapes = np.array([shape for shape, _ in result])
    error = k_hat_error(0.7, result[0][1])
    assert shapes.std() == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize(
    ("ratios", "published"), [(100, 0.5), (320, 0.60), (1000, 0.667), (2200, 0.70), (10**6, 0.7)]
)
def test_the_reliability_threshold_is_as_published(ratios, published):
    assert reliable_below(ratios) == pytest.approx(published, abs=2e-3)


def test_with_few_ratios_nothing_is_reliable():
    assert [reliable_below(count) for count in (0, 1, 10)] == [0.0, 0.0, 0.0]


def test_a_stream_keeps_the_largest_of_all_its_parts(monkeypatch):
    log_ratio = pareto(0.7, 4000, seed=1)
    expected = fitted(log_ratio)
    monkeypatch.setattr("rcdiag.statistics.pareto.KEPT", 300)
    stream = summed(map(UpperTail.of, np.array_split(log_ratio, 13)))
    shards = [UpperTail.of(part) for part in np.array_split(log_ratio, 7)]
    for result in (stream, summed(reversed(shards)), summed([stream, UpperTail.of(log_ratio[:0])])):
        assert (result.count, len(result.kept)) == (4000, 300)
        assert k_hat(result)[0] == pytest.approx(expected, rel=1e-12)


def test_a_tail_longer_than_the_kept_ratios_is_shortened(monkeypatch):
    monkeypatch.setattr("rcdiag.statistics.pareto.KEPT", 100)
    shape, count = k_hat(UpperTail.of(pareto(0.7, 20_000, seed=1)))
    assert count == 99
    assert shape == pytest.approx(0.7, abs=0.4)


@pytest.mark.parametrize("size", [0, 1, 24])
def test_too_few_ratios_have_no_tail(size):
    assert np.isnan(fitted(pareto(0.7, size, seed=0)))


def test_equal_ratios_have_no_tail():
    assert np.isnan(fitted(np.zeros(1000)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_ratio_gives_no_k_hat(bad):
    log_ratio = pareto(0.7, 1000, seed=0)
    log_ratio[500] = bad
    assert np.isnan(fitted(log_ratio))


def test_ratios_of_zero_count_but_are_in_no_tail():
    log_ratio = pareto(0.7, 1000, seed=0)
    log_ratio[np.argsort(log_ratio)[:200]] = -np.inf
    assert fitted(log_ratio) == pytest.approx(fitted(pareto(0.7, 1000, seed=0)))


@pytest.mark.parametrize("order", ["drawn", "ascending", "descending", "every 16th is small"])
def test_blocks_in_any_order_keep_the_largest(monkeypatch, order):
    monkeypatch.setattr("rcdiag.statistics.pareto.KEPT", 50)
    values = np.random.default_rng(0).normal(size=4000)
    if order == "every 16th is small":
        values[::16] = -100.0
    elif order != "drawn":
        values = np.sort(values)[:: 1 if order == "ascending" else -1]
    values[[5, 2000]] = np.inf, -np.inf
    tail = summed([UpperTail.of(some) for some in np.split(values, [16, 1600, 1616])])
    assert (tail.count, tail.not_numbers) == (4000, 1)
    np.testing.assert_array_equal(np.sort(tail.kept), np.sort(values[np.isfinite(values)])[-50:])


@pytest.mark.parametrize("shape", [0.0, 0.2, 0.3])
def test_the_second_moment_of_a_pareto_tail_beyond_the_sample(shape):
    """Ratios of 1 and a tail of exact quantiles: the bound exceeds the tail's second moment."""
    count, tail = 40_000, 600
    above = genpareto(shape, scale=0.1).ppf((np.arange(tail) + 0.5) / tail)
    log_ratio = np.concatenate([np.zeros(count - tail), np.log1p(above)])
    beyond = squares_beyond(UpperTail.of(log_ratio))
    k, size = k_hat(UpperTail.of(log_ratio))
    assert size == tail
    k += norm.ppf(0.975) * k_hat_error(k, size)
    scale = np.median(above) / genpareto(k).median()
    largest = genpareto(k, scale=scale).moment(2)
    assert beyond == pytest.approx((largest - np.square(above).mean()) * tail / count, rel=1e-6)
    assert beyond > (genpareto(shape, scale=0.1).moment(2) - np.square(above).mean()) * tail / count


def test_the_shape_is_bounded_so_that_a_second_moment_exists():
    beyond = []
    for shape in (0.45, 0.6, 0.8):
        above = genpareto(shape, scale=0.1).ppf((np.arange(600) + 0.5) / 600)
        log_ratio = np.concatenate([np.zeros(39_400), np.log1p(above)])
        assert k_hat(UpperTail.of(log_ratio))[0] + k_hat_error(shape, 600) > LARGEST_SHAPE
        beyond.append(squares_beyond(UpperTail.of(log_ratio)))
    assert np.isfinite(beyond).all()
    assert squares_beyond(UpperTail.of(np.zeros(1000))) == 0.0


def test_the_error_of_a_bounded_tail_is_above_zero():
    """Below -1 the formula (1 + k) / sqrt(M) would be negative."""
    assert k_hat_error(-1.5, 100) == k_hat_error(-0.5, 100) == pytest.approx(0.05)
