"""Metrics of batches with values in closed form or computed by hand."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import exp, log, prod, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from tests.builders import metrics


@pytest.mark.parametrize(
    ("ratio", "k1", "k3"),
    [
        (0.01, 4.605, 3.615),
        (0.5, 0.693, 0.193),
        (2.0, -0.693, 0.307),
        (10.0, -2.303, 6.697),
        (100.0, -4.605, 94.395),
    ],
)
def test_one_token_has_the_published_k1_and_k3(ratio, k1, k3):
    behavior = log(0.009)
    result = metrics([[behavior]], [[behavior + log(ratio)]])
    assert result["k1_kl"] == pytest.approx(k1, abs=5e-4)
    assert result["k3_kl"] == pytest.approx(k3, abs=5e-4)
    assert result["k2_kl"] == pytest.approx(log(ratio) ** 2 / 2)
    assert result["log_ratio_abs_mean"] == pytest.approx(abs(log(ratio)))
    assert result["prob_diff_max"] == pytest.approx(abs(0.009 * ratio - 0.009))
    assert result["chi2_token"] == pytest.approx(ratio**2 - 1)


def test_two_sequences_by_hand():
    # Probabilities: the first sequence 0.5, 0.25 -> 0.25, 0.5; the second 0.5 -> 1.
    result = metrics([[log(0.5), log(0.25)], [log(0.5)]], [[log(0.25), log(0.5)], [0.0]])
    assert result["k1_kl"] == pytest.approx(-log(2) / 3)
    assert result["k2_kl"] == pytest.approx(log(2) ** 2 / 2)
    # Token ratios 1/2, 2, 2: k3 = mean ratio - 1 + k1.
    assert result["k3_kl"] == pytest.approx(4.5 / 3 - 1 - log(2) / 3)
    assert result["log_ratio_abs_mean"] == pytest.approx(log(2))
    assert result["log_ratio_abs_max"] == pytest.approx(log(2))
    assert result["chi2_token"] == pytest.approx((0.25 + 4 + 4) / 3 - 1)
    assert result["ess_token"] == pytest.approx(4.5**2 / (3 * 8.25))
    # Sequence ratios 1 and 2.
    assert result["chi2_seq"] == pytest.approx((1 + 4) / 2 - 1)
    assert result["ess_seq"] == pytest.approx(3**2 / (2 * 5))
    assert result["behavior_ppl"] == pytest.approx((sqrt(8) + 2) / 2)
    assert result["target_ppl"] == pytest.approx((sqrt(8) + 1) / 2)
    assert result["ppl_ratio"] == pytest.approx((1 + 0.5) / 2)
    assert result["prob_diff_mean"] == pytest.approx((0.25 + 0.25 + 0.5) / 3)
    assert result["prob_diff_max"] == pytest.approx(0.5)
    pearson = np.corrcoef([0.5, 0.25, 0.5], [0.25, 0.5, 1.0])[0, 1]
    assert result["prob_pearson"] == pytest.approx(pearson)


# A small batch with the output of verl's own code. Its fourth row is padding, which verl
# counts in the means over rows and rcdiag leaves out.
F1_BEHAVIOR = [[-1, -0.5, -2, -0.1, -3], [-2, -1.5, -1], [-0.7, -0.2, -4]]
F1_LOG_RATIO = [[0.10, -0.05, 0, 0.02, -0.07], [0.60, 0.40, 0.30], [-0.50, -0.10, -0.90]]
F1_TARGET = [
    [a + b for a, b in zip(*rows, strict=True)]
    for rows in zip(F1_BEHAVIOR, F1_LOG_RATIO, strict=True)
]


@pytest.mark.parametrize(
    ("name", "logged"), [("k1_kl", 0.018182), ("k3_kl", 0.071885), ("chi2_token", 0.250554)]
)
def test_token_metrics_are_those_that_verl_logs(name, logged):
    assert metrics(F1_BEHAVIOR, F1_TARGET)[name] == pytest.approx(logged, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "logged", "of_padding"),
    [
        ("target_ppl", 4.023016, 1.0),
        ("behavior_ppl", 3.586506, 1.0),
        ("ppl_ratio", 1.074266, 1.0),
        ("chi2_seq", 2.878381, 0.0),
    ],
)
def test_sequence_metrics_are_those_that_verl_logs_without_its_padding_row(
    name, logged, of_padding
):
    without_padding = (4 * logged - of_padding) / 3
    assert metrics(F1_BEHAVIOR, F1_TARGET)[name] == pytest.approx(without_padding, abs=3e-6)
    with_empty_row = metrics([*F1_BEHAVIOR, []], [*F1_TARGET, []])
    assert with_empty_row[name] == pytest.approx(without_padding, abs=3e-6)


def test_an_enumerated_policy_gives_its_exact_divergences():
    """Every sequence of three tokens with its exact frequency in 4^3 draws of the behavior."""
    behavior = [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)]
    target = [Fraction(1, 8), Fraction(1, 2), Fraction(3, 8)]
    rows = []
    for sequence in itertools.product(range(3), repeat=3):
        times = prod(behavior[token] for token in sequence) * 4**3
        assert times.denominator == 1
        rows += [sequence] * int(times)
    result = metrics(
        [[log(behavior[token]) for token in row] for row in rows],
        [[log(target[token]) for token in row] for row in rows],
    )
    kl = sum(float(p) * log(p / q) for p, q in zip(behavior, target, strict=True))
    second_moment = float(sum(q * q / p for p, q in zip(behavior, target, strict=True)))
    assert result["k1_kl"] == pytest.approx(kl)
    assert result["k3_kl"] == pytest.approx(kl)
    assert result["chi2_token"] == pytest.approx(second_moment - 1)
    assert result["chi2_seq"] == pytest.approx(second_moment**3 - 1)
    assert result["ess_token"] == pytest.approx(1 / second_moment)
    assert result["ess_seq"] == pytest.approx(1 / second_moment**3)


@pytest.mark.parametrize("sd", [0.05, 0.3, 0.7])
def test_lognormal_ratios_give_the_lognormal_values(sd):
    quantiles = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    log_ratio = sd * quantiles - sd**2 / 2
    behavior = np.full(len(quantiles), -5.0)
    result = metrics(behavior[:, None].tolist(), (behavior + log_ratio)[:, None].tolist())
    assert result["k1_kl"] == pytest.approx(sd**2 / 2, rel=1e-2)
    assert result["k3_kl"] == pytest.approx(sd**2 / 2, rel=1e-2)
    assert result["chi2_seq"] == pytest.approx(exp(sd**2) - 1, rel=2e-2)
    assert result["ess_seq"] == pytest.approx(exp(-(sd**2)), rel=1e-2)
