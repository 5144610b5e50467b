"""Huge, infinite and missing log-ratios: each metric is correct or NaN."""

from __future__ import annotations

from math import exp, inf, nan

import numpy as np
import pytest
from scipy.stats import entropy

from tests.builders import make_state, metrics, mismatch, values_of


def with_log_ratio(log_ratio: float) -> dict[str, float]:
    """Make two sequences of two tokens; one token has the log-ratio, the others 0."""
    behavior = -1e-3 if log_ratio < 0 else -1e-3 - log_ratio
    return metrics([[behavior, -1.0], [-1.0, -1.0]], [[behavior + log_ratio, -1.0], [-1.0, -1.0]])


def test_log_ratios_of_fifty_are_accurate():
    result = with_log_ratio(50.0)
    assert result["k1_kl"] == pytest.approx(-12.5)
    assert result["k3_kl"] == pytest.approx((exp(50) - 51) / 4)
    assert result["chi2_token"] == pytest.approx((exp(100) + 3) / 4 - 1)
    assert result["chi2_seq"] == pytest.approx((exp(100) + 1) / 2 - 1)
    assert result["ess_token"] == pytest.approx(1 / 4)
    assert result["ess_seq"] == pytest.approx(1 / 2)
    result = with_log_ratio(-50.0)
    assert result["k3_kl"] == pytest.approx(49 / 4)
    assert result["chi2_token"] == pytest.approx(-1 / 4)
    assert result["ess_token"] == pytest.approx(3 / 4)
    assert result["ess_seq"] == pytest.approx(1 / 2)


def test_log_ratios_of_a_thousand_overflow_to_infinity_and_not_to_nan():
    result = with_log_ratio(1000.0)
    assert result["k1_kl"] == pytest.approx(-250.0)
    assert result["k2_kl"] == pytest.approx(125_000.0)
    for name in ("k3_kl", "chi2_token", "chi2_seq", "k1_kl_reverse", "k3_kl_reverse_seq"):
        assert result[name] == inf, name
    assert result["tv_token"] == 0.0
    assert result["ess_token"] == pytest.approx(1 / 4)
    assert result["perplexity_ess_token"] == pytest.approx(1 / 4)
    assert result["ess_seq"] == pytest.approx(1 / 2)
    assert result["log_ratio_abs_max"] == pytest.approx(1000.0)
    result = with_log_ratio(-1000.0)
    assert result["k3_kl"] == pytest.approx(999 / 4)
    assert result["ess_token"] == pytest.approx(3 / 4)
    assert result["target_ppl"] == pytest.approx((exp(500.5005) + exp(1)) / 2)


def test_a_token_impossible_under_the_target_has_ratio_zero():
    result = metrics([[-1.0, -1.0], [-1.0]], [[-inf, -1.0], [-1.0]])
    assert [result[name] for name in ("k1_kl", "k2_kl", "k3_kl")] == [inf, inf, inf]
    assert result["log_ratio_abs_max"] == inf
    assert result["target_ppl"] == inf
    assert result["behavior_ppl"] == pytest.approx(exp(1))
    assert result["chi2_token"] == pytest.approx(-1 / 3)
    assert result["chi2_seq"] == pytest.approx(-1 / 2)
    assert result["ess_token"] == pytest.approx(2 / 3)
    assert result["ess_seq"] == pytest.approx(1 / 2)
    assert result["prob_diff_max"] == pytest.approx(exp(-1))
    assert result["tv_token"] == pytest.approx(1 / 3)
    assert result["tv_seq"] == pytest.approx(1 / 2)
    assert result["hellinger2_token"] == pytest.approx(1 / 3)
    assert result["perplexity_ess_token"] == pytest.approx(2 / 3)
    assert result["perplexity_ess_seq"] == pytest.approx(1 / 2)
    assert result["ratio_mean"] == pytest.approx(2 / 3)
    for name in ("k1_kl_reverse", "k2_kl_reverse", "k1_kl_reverse_seq", "k2_kl_reverse_seq"):
        assert result[name] == 0.0, name
    assert result["k3_kl_reverse"] == pytest.approx(1 / 3)
    assert result["ratio_outside_10"] == pytest.approx(1 / 3)


def test_a_token_impossible_under_the_behavior_leaves_no_finite_divergence():
    result = metrics([[-inf, -1.0], [-1.0]], [[-1.0, -1.0], [-1.0]])
    assert result["k1_kl"] == -inf
    for name in ("k2_kl", "k3_kl", "log_ratio_abs_mean", "chi2_token", "chi2_seq", "ess_token"):
        assert not np.isfinite(result[name]), name
    assert result["target_ppl"] == pytest.approx(exp(1))


def test_a_token_impossible_under_both_gives_nan_without_a_warning():
    result = metrics([[-inf, -1.0], [-1.0]], [[-inf, -1.0], [-1.0]])
    assert np.isnan(result["k1_kl"])
    assert result["prob_diff_max"] == 0.0


def test_perplexity_ess_of_huge_log_ratios_is_that_of_their_differences():
    result = metrics([[-900.0], [-900.0], [-900.0]], [[-1.0], [-2.0], [-800.0]])
    weights = np.exp([-1.0, -2.0, -800.0])
    assert result["perplexity_ess_token"] == pytest.approx(exp(entropy(weights)) / 3)


@pytest.mark.parametrize("side", ["behavior", "target"])
def test_a_nan_affects_exactly_the_metrics_that_use_it(side):
    clean, dirty = [[-1.0, -2.0], [-3.0]], [[-1.0, nan], [-3.0]]
    batch = (dirty, clean) if side == "behavior" else (clean, dirty)
    untouched = "target_ppl" if side == "behavior" else "behavior_ppl"
    for name, value in values_of(make_state(*batch)).items():
        assert value is not None, name
        assert np.isnan(value) == (name != untouched), name


def test_nan_values_have_neither_interval_nor_level():
    table = make_state([[-1.0, nan], [-3.0], [-2.0]], [[-1.0, -2.0], [-3.0], [-2.5]])
    result = mismatch(table)
    assert (result["k3_kl"].low, result["k3_kl"].high) == (None, None)
    assert result["k3_kl"].level is None
    assert result["target_ppl"].low is not None


def test_an_infinite_divergence_is_an_error_without_an_interval():
    result = mismatch(make_state([[-1.0], [-1.0]], [[-inf], [-1.0]]))["k3_kl"]
    assert (result.value, result.low, result.high, result.level) == (inf, None, None, "error")


# With one token there is no spread, with one cluster no error, with few ratios no tail.
UNDEFINED_OF_ONE_TOKEN = {
    "prob_diff_std",
    "prob_pearson",
    "prob_spearman",
    "khat_token",
    "khat_seq",
    "ratio_mean_z",
    "ratio_mean_seq_z",
    "kappa_se",
    "variance_ratio",
}
# And for equal policies, metrics that are a share of zero.
UNDEFINED_OF_EQUAL_POLICIES = {
    "khat_token",
    "khat_seq",
    "ratio_mean_z",
    "ratio_mean_seq_z",
    "kappa",
    "kappa_se",
    "variance_ratio",
    "top_share",
}


def undefined(*batch: list[list[float]]) -> set[str]:
    return {name for name, value in values_of(make_state(*batch)).items() if value is None}


@pytest.mark.parametrize("log_ratio", [-0.5, 0.1, 0.7, 1e-9])
def test_one_token_has_all_metrics_except_spreads(log_ratio):
    assert undefined([[-1.0]], [[-1.0 + log_ratio]]) == UNDEFINED_OF_ONE_TOKEN


def test_equal_policies_have_all_metrics_except_shares_of_zero():
    behavior = [[-1.0, -2.0, -0.5], [-3.0], [-0.2, -0.1]]
    assert undefined(behavior, behavior) == UNDEFINED_OF_EQUAL_POLICIES


def test_equal_policies_give_no_warning_and_no_false_level():
    behavior = [[-1.0, -2.0, -0.5], [-3.0], [-0.2, -0.1]] * 100
    for name, value in mismatch(make_state(behavior, behavior)).items():
        assert value.level in (None, "ok"), name


@pytest.mark.parametrize("constant", [0.1, -0.3])
def test_the_same_log_ratio_everywhere_has_no_variance_to_compare(constant):
    behavior = [[-1.0, -2.0, -0.5], [-3.0], [-0.2, -0.1]]
    target = [[value + constant for value in row] for row in behavior]
    assert values_of(make_state(behavior, target))["variance_ratio"] is None


@pytest.mark.parametrize("size", [1e15, 1e16, 1e38, 1e154, 1e300, 1e307])
@pytest.mark.parametrize("giants", [1, 2, 5])
def test_effective_sample_sizes_of_placeholders_are_counts(size, giants):
    """Equal huge ratios share all the weight, some of them in one sequence."""
    behavior = np.full((8, 5), -1.0)
    behavior.flat[np.array([0, 1, 7, 20, 33])[:giants]] = -size
    target = np.full(behavior.shape, -1.0)
    result = metrics(behavior.tolist(), target.tolist())
    assert result["ess_token"] == pytest.approx(giants / 40)
    assert result["perplexity_ess_token"] == pytest.approx(giants / 40)
    sums = np.ldexp(target - behavior, -10).sum(axis=1)
    largest = np.count_nonzero(sums == sums.max())
    assert result["ess_seq"] == pytest.approx(largest / 8)
