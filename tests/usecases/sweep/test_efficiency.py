"""Errors of gradients, against loops over pairs, simulations, and known values."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.sweep.scores import GradientError, GradientScores, SampleSizes
from rcdiag.usecases.sweep.sketched_gradients import DIMENSIONS, OWN, Buckets, centred

NOTHING = np.zeros((7, 3))


def sums(seed: int, clusters: int = 7, dimensions: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 1.0, (clusters, dimensions))


def equal_sizes(clusters: int, batches: int = 1) -> SampleSizes:
    return SampleSizes(np.ones(clusters), batches)


def test_the_bias_is_over_pairs_of_different_clusters():
    gradient, reference, sizes = sums(0), sums(1), np.arange(1.0, 8.0)
    away = gradient - reference
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b]
    expected = sum(away[a] @ away[b] for a, b in pairs) / sum(sizes[a] * sizes[b] for a, b in pairs)
    error = GradientError.of(SampleSizes(sizes, 1), gradient, reference)
    assert error.bias == pytest.approx(max(expected, 0.0))


def test_a_gradient_has_no_bias_against_itself():
    assert GradientError.of(equal_sizes(7), sums(0), sums(0)).bias == 0.0


def test_squared_length_and_noise_are_the_square_of_the_mean():
    error = GradientError.of(equal_sizes(7), sums(0), NOTHING)
    mean = sums(0).mean(axis=0)
    assert error.bias + error.noise == pytest.approx(mean @ mean)


def test_noise_of_a_part_of_the_table_is_as_many_times_as_large():
    random = np.random.default_rng(0)
    gradient = np.array([1.0, 0.0]) + random.normal(0.0, 1.0, (4000, 2))
    noise = GradientError.of(equal_sizes(4000, 100), gradient, gradient).noise
    assert noise == pytest.approx(2.0 * 100 / 4000, rel=0.05)


def errors(seed: int, bias: float, spread: float) -> tuple[GradientError, GradientError]:
    """Return errors of no correction, which is biased, and of the reference, which is noisy."""
    random = np.random.default_rng(seed)
    plain = np.array([0.2, 0.0, 0.0]) + random.normal(0.0, 1.0, (200, 3))
    exact = plain * (1.0 + spread * random.normal(0.0, 1.0, (200, 1))) + np.array([0, bias, 0])
    sizes = equal_sizes(200)
    return GradientError.of(sizes, plain, exact), GradientError.of(sizes, exact, exact)


@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_the_error_is_the_expected_squared_error_of_a_batch(bias):
    drawn = [errors(seed, bias, 0.5) for seed in range(300)]
    away = [float(plain.distances.sum()) / plain.sizes.pairs for plain, _ in drawn]
    assert np.mean(away) == pytest.approx(bias**2, abs=4.0 * np.std(away) / np.sqrt(300))
    assert np.mean([plain.noise for plain, _ in drawn]) == pytest.approx(3.0 / 200, rel=0.02)
    noisier = 3.0 * 1.25 + 0.25 * 0.04
    assert np.mean([exact.noise for _, exact in drawn]) == pytest.approx(noisier / 200, rel=0.03)


def test_the_standard_error_is_that_of_the_total_over_tables():
    """Without bias, where the pairs of clusters are uncorrelated."""
    drawn = [errors(seed, 0.0, 0.5)[0] for seed in range(400)]
    totals = [float(it.distances.sum()) / it.sizes.pairs + it.noise for it in drawn]
    assert np.mean([it.standard_error() for it in drawn]) == pytest.approx(np.std(totals), rel=0.2)


def test_a_difference_has_a_smaller_standard_error_than_either_error():
    plain, exact = errors(0, 0.0, 0.01)
    assert plain.standard_error(exact) < 0.1 * plain.standard_error()


def scores(bias: float) -> GradientScores:
    plain, exact = errors(0, bias, 0.5)
    return GradientScores({"none": plain, "exact": exact}, plain.noise)


def test_efficiency_is_noise_over_error():
    by_error = scores(0.5)
    assert by_error.value("none") == pytest.approx(1.0 / (1.0 + by_error.bias("none")))
    assert by_error.value("exact") == pytest.approx(1.0 / by_error.noise("exact"))
    assert by_error.value("keeps nothing") == 0.0
    interval = by_error.metric("none")
    assert interval.low < interval.value < interval.high


def test_a_bias_is_distinguished_from_noise():
    assert scores(0.0).within("exact", "none")
    assert not scores(0.5).within("exact", "none")


def test_the_mean_under_the_target_is_subtracted():
    random = np.random.default_rng(0)
    tokens = random.normal(3.0, 1.0, (50, 2))
    gradient = np.column_stack([tokens, np.ones(50)])
    result = centred(gradient, gradient)
    assert result.sum(axis=0) == pytest.approx(np.zeros(2), abs=1e-12)
    assert result == pytest.approx(tokens - tokens.mean(axis=0))


def test_shared_dimensions_keep_inner_products_in_expectation():
    random = np.random.default_rng(3)
    ids = np.arange(20_000, dtype=np.int32)
    bucket, sign = Buckets(ids[:10_000]).of(ids)
    assert (bucket[:OWN] == np.arange(OWN)).all()
    assert (sign[:OWN] == 1.0).all()
    shared = np.bincount(bucket[OWN:], minlength=DIMENSIONS)
    assert shared[:OWN].sum() == 0
    assert shared[OWN:].min() > 0.5 * len(ids) / (DIMENSIONS - OWN)
    assert abs(sign[OWN:].mean()) < 0.03
    products = []
    for _ in range(2000):
        few = random.integers(0, len(ids), 40)
        both = [random.normal(size=40) for _ in range(2)]
        a, b = (np.bincount(bucket[few], sign[few] * x, DIMENSIONS) for x in both)
        products.append(a @ b - both[0] @ both[1])
    assert abs(np.mean(products)) < 4.0 * np.std(products) / np.sqrt(2000)


def test_few_ids_have_a_dimension_each():
    ids = np.array([7, 150_000, 3], np.int32)
    bucket, sign = Buckets(ids).of(np.array([3, 7, 150_000, 7], np.int32))
    assert bucket.tolist() == [2, 0, 1, 0]
    assert (sign == 1.0).all()


def test_a_bias_that_cannot_be_measured_has_a_wide_interval():
    plain, exact = errors(0, 0.3, 20.0)
    assert exact.error_of_bias == 0.0
    assert plain.most_bias > plain.bias + 10.0 * plain.noise
    assert not GradientScores({"none": plain, "exact": exact}, plain.noise).resolved
    assert scores(0.3).resolved
