"""Log-ratios N(-s^2 / 2, s^2), as for a small mismatch: every metric has a closed form."""

from __future__ import annotations

from functools import cache
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from rcdiag.statistics.ratios import Ratios, k2, k3
from tests.builders import make_state, metrics, values_of

TOKENS = (
    4  # of a sequence; the sums of independent log-ratios are of the same distribution, with s * 2
)
SEQUENCES = 3000
BATCHES = 25


@cache
def sampled(s: float) -> dict[str, np.ndarray]:
    """Compute every metric on many independent batches."""
    random = np.random.default_rng(7)
    result = []
    for _ in range(BATCHES):
        log_ratio = random.normal(-(s**2) / 2, s, size=(SEQUENCES, TOKENS))
        behavior = np.full_like(log_ratio, -9.0)
        result.append(values_of(make_state(behavior, behavior + log_ratio)))
    return {name: np.array([item[name] for item in result], dtype=float) for name in result[0]}


def assert_near(values: np.ndarray, expected: float, name: str, bias: float = 0.0) -> None:
    """Check that the mean over batches is within 5 standard errors, plus the estimator's bias."""
    error = values.std(ddof=1) / sqrt(len(values))
    assert abs(values.mean() - expected) < 5 * error + bias * abs(expected), name
    assert error < 0.25 * abs(expected) + 1e-3, name


def of_ratios(s: float) -> dict[str, float]:
    """Return closed forms at token or sequence level, with s of that level."""
    second_order = (s**2 + s**4 / 4) / 2
    return {
        "k1_kl": s**2 / 2,
        "k2_kl": second_order,
        "k3_kl": s**2 / 2,
        "k1_kl_reverse": s**2 / 2,
        "k2_kl_reverse": second_order,
        "k3_kl_reverse": s**2 / 2,
        "ratio_mean": 1.0,
        "tv_token": 2 * norm.cdf(s / 2) - 1,
        "hellinger2_token": 1 - exp(-(s**2) / 8),
        "chi2_token": exp(s**2) - 1,
        "chi2_token_self_normalised": exp(s**2) - 1,
        "ess_token": exp(-(s**2)),
        "perplexity_ess_token": exp(-(s**2) / 2),
    }


@pytest.mark.parametrize("s", [0.05, 0.2, 0.5])
def test_token_ratios_have_the_values_of_the_lognormal_distribution(s):
    for name, expected in of_ratios(s).items():
        assert_near(sampled(s)[name], expected, name, bias=2e-3)


@pytest.mark.parametrize("s", [0.05, 0.2, 0.4])
def test_sequence_ratios_have_those_of_the_sum(s):
    for name, expected in of_ratios(s * sqrt(TOKENS)).items():
        of_sequences = name.replace("_token", "_seq") if "_token" in name else f"{name}_seq"
        assert_near(sampled(s)[of_sequences], expected, of_sequences, bias=5e-3)


@pytest.mark.parametrize("s", [0.05, 0.2, 0.5])
def test_log_ratios_have_the_values_of_the_folded_normal_distribution(s):
    m = s**2 / 2
    mean = s * sqrt(2 / np.pi) * exp(-(m**2) / (2 * s**2)) + m * (1 - 2 * norm.cdf(-m / s))
    result = sampled(s)
    assert_near(result["log_ratio_abs_mean"], mean, "mean")
    assert_near(result["log_ratio_std"], s, "std", bias=1e-3)
    assert_near(result["log_ratio_abs_std"], sqrt(s**2 + m**2 - mean**2), "abs", bias=1e-3)
    exp_abs = norm.cdf(s / 2) + exp(s**2) * norm.cdf(1.5 * s)
    assert_near(result["exp_abs_log_ratio_mean"], exp_abs, "exp")
    assert_near(result["ratio_deviation_mean"], 2 * (2 * norm.cdf(s / 2) - 1), "deviation")
    for bound in (1.1, 1.5):
        beyond = norm.cdf((-log(bound) + m) / s) + norm.cdf((-log(bound) - m) / s)
        name = f"ratio_outside_{bound}"
        assert result[name].mean() == pytest.approx(beyond, abs=4e-3), name
    for share in (0.5, 0.9, 0.99):
        value = result[f"log_ratio_abs_p{100 * share:g}"].mean()
        below = norm.cdf((value + m) / s) - norm.cdf((-value + m) / s)
        assert below == pytest.approx(share, abs=2e-3), share


@pytest.mark.parametrize("s", [0.05, 0.2, 0.5])
def test_calibration_says_that_the_behavior_is_the_sampler(s):
    result = sampled(s)
    assert_near(result["kappa"], 1 / (1 + s**2 / 4), "kappa", bias=2e-3)
    assert_near(result["variance_ratio"], 1.0, "variance ratio", bias=2e-3)
    # Its error is that of a mean over independent tokens, 2 / (sqrt(n) rms).
    rms = sqrt(s**2 + s**4 / 4)
    error = 2 / (sqrt(SEQUENCES * TOKENS) * rms)
    assert result["kappa_se"].mean() == pytest.approx(error, rel=0.1)
    assert result["kappa"].std() == pytest.approx(error, rel=0.4)
    for name in ("ratio_mean_z", "ratio_mean_seq_z"):
        assert abs(result[name].mean()) < 1.0, name
        assert 0.6 < result[name].std() < 1.5, name


@pytest.mark.parametrize(
    ("mean", "k1_std", "k2_bias", "k2_std", "k3_std"),
    [(0.1, 20.0, 0.002, 1.42, 1.42), (1.0, 2.0, 0.25, 1.73, 1.70)],
)
def test_bias_and_spread_relative_to_kl_are_those_that_schulman_printed(
    mean, k1_std, k2_bias, k2_std, k3_std
):
    """Behavior N(0, 1), target N(mean, 1): http://joschu.net/blog/kl-approx.html."""
    x = np.random.default_rng(1).normal(size=1_000_000)
    behavior, target = norm.logpdf(x), norm.logpdf(x, mean)
    result = metrics([behavior], [target])
    kl = mean**2 / 2
    ratios = Ratios.of(target - behavior)
    assert result["log_ratio_std"] / kl == pytest.approx(k1_std, rel=0.01)
    assert np.std(k2(ratios)) / kl == pytest.approx(k2_std, rel=0.01)
    assert np.std(k3(ratios)) / kl == pytest.approx(k3_std, rel=0.02)
    error = 1 / sqrt(len(x))
    assert result["k1_kl"] / kl == pytest.approx(1.0, abs=5 * k1_std * error)
    assert result["k2_kl"] / kl == pytest.approx(1.0 + k2_bias, abs=5 * k2_std * error)
    assert result["k3_kl"] / kl == pytest.approx(1.0, abs=5 * k3_std * error)
