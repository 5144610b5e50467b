"""Inner products of gradients are unbiased, against exact values by enumeration.

Batches are drawn from the sampler of two tabular policies; sampling error is stated as standard
errors over the batches.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rcdiag.usecases.replay.gradients import (
    Products,
    cosine,
    off_diagonal,
    relative_bias,
    relative_variance,
)
from tests.statistics.enumerated import SEQUENCES
from tests.usecases.replay.enumeration import CONFIGS, NAMES, enumerated, estimators

ROWS, BATCHES = 6, 1500
every_estimator = pytest.mark.parametrize("name", NAMES)


def definition(name: str) -> np.ndarray:
    """Return weights [81, LENGTH], 0 if rejected."""
    log_ratio = enumerated().log_ratios
    ones, total = np.ones(log_ratio.shape), log_ratio.sum(axis=1, keepdims=True)
    mean = log_ratio.mean(axis=1, keepdims=True)
    return {
        "none": ones,
        "token_is": np.minimum(np.exp(log_ratio), 1.3),
        "seq_is": ones * np.exp(total),
        "seq_tis": ones * np.minimum(np.exp(total), 1.3),
        "seq_mis": ones * np.exp(total) * (np.abs(total) <= np.log(2.0)),
        "geo_rs": ones * (np.abs(mean) <= np.log(1.25)),
    }[name]


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_sequences_gradient_is_that_of_the_definition(name):
    expected = enumerated().of_weights(definition(name))
    np.testing.assert_allclose(estimators()[name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["token_is", "seq_tis", "seq_mis", "geo_rs"])
def test_the_bounds_act_on_some_sequences_only(name):
    unbounded = {"token_is": np.exp(enumerated().log_ratios), "geo_rs": np.ones((81, 4))}
    free = unbounded.get(name, definition("seq_is"))
    assert 0.02 < (definition(name) != free).mean() < 0.98


def test_the_reference_is_unbiased():
    """Its expectation is the on-policy gradient, as is that of unbounded sequence IS."""
    case = enumerated()
    for gradients in (case.reference, estimators()["seq_is"]):
        np.testing.assert_allclose(case.expected(gradients), case.on_policy, atol=1e-14)


def test_every_other_estimator_is_biased():
    case = enumerated()
    for name in set(CONFIGS) - {"seq_is"}:
        apart = case.expected(estimators()[name]) - case.on_policy
        assert np.linalg.norm(apart) > 1e-3 * np.linalg.norm(case.on_policy), name


@cache
def drawn() -> np.ndarray:
    """Draw sequence numbers, [BATCHES, ROWS]."""
    random = np.random.default_rng(5)
    return random.choice(len(SEQUENCES), (BATCHES, ROWS), p=enumerated().law)


def within(samples: np.ndarray, exact: float, errors: float = 4.0) -> bool:
    """Check that the mean over batches is within some standard errors of the exact value."""
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    return abs(samples.mean() - exact) <= errors * error + 1e-15


@cache
def of_batches(name: str) -> list[tuple[Products, np.ndarray]]:
    """Return inner products and gradients per batch; a sequence of n has weight 1 / n."""
    g, r = estimators()[name] / ROWS, enumerated().reference / ROWS
    return [(Products.of(g[rows], r[rows]), g[rows]) for rows in drawn()]


def unbiased(products: np.ndarray) -> float:
    """Return unbiased estimates of the squared norm, or inner product, of the expected sum."""
    return float(off_diagonal(products, np.ones((1, ROWS)))[0]) * ROWS / (ROWS - 1)


@every_estimator
def test_the_cosines_three_products_are_unbiased(name):
    case, batches = enumerated(), of_batches(name)
    g, r = case.expected(estimators()[name]), case.on_policy
    for part, exact in (("gr", g @ r), ("gg", g @ g), ("rr", r @ r)):
        result = np.array([unbiased(getattr(products, part)) for products, _ in batches])
        assert within(result, exact), part


@every_estimator
def test_the_squared_bias_is_unbiased(name):
    apart = enumerated().expected(estimators()[name]) - enumerated().on_policy
    result = [unbiased(p.gg - p.gr - p.gr.T + p.rr) for p, _ in of_batches(name)]
    assert within(np.array(result), apart @ apart)


@every_estimator
def test_the_noise_of_the_sum_is_unbiased(name):
    """n / (n - 1) sum |G_c - mean|^2, of which `relative_variance` is the ratio to |E G|^2."""
    expected = enumerated().noise(estimators()[name]) / ROWS
    result = []
    for products, gradients in of_batches(name):
        value = relative_variance(products.gg)
        noise = np.square(gradients - gradients.mean(axis=0)).sum() * ROWS / (ROWS - 1)
        if value is not None:
            assert value * unbiased(products.gg) == pytest.approx(noise)
        result.append(noise)
    assert within(np.array(result), expected)


LARGE = 1500


@cache
def sample() -> np.ndarray:
    return np.random.default_rng(6).choice(len(SEQUENCES), LARGE, p=enumerated().law)


def of_sample(name: str) -> Products:
    rows = sample()
    return Products.of(estimators()[name][rows] / LARGE, enumerated().reference[rows] / LARGE)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_large_sample_estimates_cosine_bias_and_variance(name):
    """Exact values are in the 95% intervals widened by half, since some of six may miss."""
    case, products = enumerated(), of_sample(name)
    g, r = case.expected(estimators()[name]), case.on_policy
    expected = {
        "cosine": (cosine(products, 0), g @ r / np.sqrt((g @ g) * (r @ r))),
        "bias": (relative_bias(products, 0), (g - r) @ (g - r) / (r @ r)),
    }
    for what, (result, exact) in expected.items():
        slack = 0.25 * (result.high - result.low) + 1e-12
        assert result.low - slack <= exact <= result.high + slack, what
    variance = case.noise(estimators()[name]) / LARGE / (g @ g)
    assert relative_variance(products.gg) == pytest.approx(variance, rel=0.15)


def test_the_bias_of_unbounded_sequence_weights_is_zero():
    result = relative_bias(of_sample("seq_is"), 0)
    assert (result.value, result.high) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert cosine(of_sample("seq_is"), 0).value == pytest.approx(1.0)
