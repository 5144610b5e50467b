"""Huge, infinite and missing log-ratios: each metric is right, or says that it is no number."""

from __future__ import annotations

from math import exp, inf, nan

import numpy as np
import pytest

from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.mismatch import mismatch
from tests.builders import make_sequences, metrics


def with_log_ratio(log_ratio: float) -> dict[str, float]:
    """Two sequences of two tokens; one token has the log-ratio, the others 0."""
    behavior = -1e-3 if log_ratio < 0 else -1e-3 - log_ratio
    return metrics([[behavior, -1.0], [-1.0, -1.0]], [[behavior + log_ratio, -1.0], [-1.0, -1.0]])


def test_log_ratios_of_fifty_keep_their_digits():
    found = with_log_ratio(50.0)
    assert found["k1_kl"] == pytest.approx(-12.5)
    assert found["k3_kl"] == pytest.approx((exp(50) - 51) / 4)
    assert found["chi2_token"] == pytest.approx((exp(100) + 3) / 4 - 1)
    assert found["chi2_seq"] == pytest.approx((exp(100) + 1) / 2 - 1)
    assert found["ess_token"] == pytest.approx(1 / 4)
    assert found["ess_seq"] == pytest.approx(1 / 2)
    found = with_log_ratio(-50.0)
    assert found["k3_kl"] == pytest.approx(49 / 4)
    assert found["chi2_token"] == pytest.approx(-1 / 4)
    assert found["ess_token"] == pytest.approx(3 / 4)
    assert found["ess_seq"] == pytest.approx(1 / 2)


def test_log_ratios_of_a_thousand_overflow_to_infinity_and_not_to_nan():
    found = with_log_ratio(1000.0)
    assert found["k1_kl"] == pytest.approx(-250.0)
    assert found["k2_kl"] == pytest.approx(125_000.0)
    assert [found[name] for name in ("k3_kl", "chi2_token", "chi2_seq")] == [inf, inf, inf]
    assert found["ess_token"] == pytest.approx(1 / 4)
    assert found["ess_seq"] == pytest.approx(1 / 2)
    assert found["log_ratio_abs_max"] == pytest.approx(1000.0)
    found = with_log_ratio(-1000.0)
    assert found["k3_kl"] == pytest.approx(999 / 4)
    assert found["ess_token"] == pytest.approx(3 / 4)
    assert found["target_ppl"] == pytest.approx((exp(500.5005) + exp(1)) / 2)


def test_a_token_impossible_under_the_target_has_ratio_zero():
    found = metrics([[-1.0, -1.0], [-1.0]], [[-inf, -1.0], [-1.0]])
    assert [found[name] for name in ("k1_kl", "k2_kl", "k3_kl")] == [inf, inf, inf]
    assert found["log_ratio_abs_max"] == inf
    assert found["target_ppl"] == inf
    assert found["behavior_ppl"] == pytest.approx(exp(1))
    assert found["chi2_token"] == pytest.approx(-1 / 3)
    assert found["chi2_seq"] == pytest.approx(-1 / 2)
    assert found["ess_token"] == pytest.approx(2 / 3)
    assert found["ess_seq"] == pytest.approx(1 / 2)
    assert found["prob_diff_max"] == pytest.approx(exp(-1))


def test_a_token_impossible_under_the_behavior_leaves_no_finite_divergence():
    found = metrics([[-inf, -1.0], [-1.0]], [[-1.0, -1.0], [-1.0]])
    assert found["k1_kl"] == -inf
    for name in ("k2_kl", "k3_kl", "log_ratio_abs_mean", "chi2_token", "chi2_seq", "ess_token"):
        assert not np.isfinite(found[name]), name
    assert found["target_ppl"] == pytest.approx(exp(1))


def test_a_token_impossible_under_both_is_no_number_and_warns_of_nothing():
    found = metrics([[-inf, -1.0], [-1.0]], [[-inf, -1.0], [-1.0]])
    assert np.isnan(found["k1_kl"])
    assert found["prob_diff_max"] == 0.0


@pytest.mark.parametrize("side", ["behavior", "target"])
def test_a_nan_shows_in_every_metric_that_it_touches_and_in_no_other(side):
    clean, dirty = [[-1.0, -2.0], [-3.0]], [[-1.0, nan], [-3.0]]
    found = metrics(dirty, clean) if side == "behavior" else metrics(clean, dirty)
    untouched = "target_ppl" if side == "behavior" else "behavior_ppl"
    for name in METRICS:
        assert np.isnan(found[name]) == (name != untouched), name


def test_values_that_are_no_numbers_have_no_interval_and_no_false_level():
    table = make_sequences([[-1.0, nan], [-3.0], [-2.0]], [[-1.0, -2.0], [-3.0], [-2.5]])
    found = mismatch(table, seed=0)
    assert (found["k3_kl"].low, found["k3_kl"].high) == (None, None)
    assert found["k3_kl"].level is None
    assert found["target_ppl"].low is not None


def test_an_infinite_divergence_is_an_error_without_an_interval():
    found = mismatch(make_sequences([[-1.0], [-1.0]], [[-inf], [-1.0]]), seed=0)["k3_kl"]
    assert (found.value, found.low, found.high, found.level) == (inf, None, None, "error")


def test_one_token_alone_has_defined_metrics():
    found = metrics([[-1.0]], [[-1.5]])
    for name, value in found.items():
        assert np.isnan(value) == (name == "prob_pearson"), name


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("k3_kl", 0.0009, "ok"),
        ("k3_kl", 0.002, "warning"),
        ("k3_kl", 0.02, "error"),
        ("prob_diff_mean", 0.011, "error"),
        ("ess_seq", 0.9, "ok"),
        ("ess_seq", 0.3, "warning"),
        ("ess_seq", 0.05, "error"),
    ],
)
def test_levels_follow_the_guide_values(name, value, level):
    guide = METRICS[name].guide
    assert guide is not None
    assert guide.level(value) == level
