"""Clamps, bounds and rows without tokens, as in verl."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.trainers import TRAINERS
from tests.corrections.builders import padded, result_of, without_prefix

BY_K = ("verl-0.7.1", "verl-0.8.0", "verl-0.9")
OLD = ("verl-20250826", "verl-0.6.0", "verl-20251027")
TOKEN = {"rollout_is": "token", "rollout_is_threshold": 2.0}
HUGE = (np.exp(20.0) + 2.0) / 3.0
SEQUENCE = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}


def metric(trainer: str, config: dict, rows: list[list[float]], name: str) -> float:
    return without_prefix(result_of(trainer, config, padded(rows)).metrics)[name]


@pytest.mark.parametrize(
    ("trainer", "mean"),
    [("verl-0.6.1", HUGE), ("verl-0.7.1", HUGE), ("verl-0.8.0", 4 / 3), ("verl-0.9", 4 / 3)],
)
def test_a_huge_ratio_is_in_the_mean_of_raw_weights_and_not_of_applied_ones(trainer, mean):
    rows = [[25.0, 0.0, 0.0]]
    assert metric(trainer, TOKEN, rows, "rollout_is_mean") == pytest.approx(mean, rel=1e-6)
    size = metric(trainer, TOKEN, rows, "rollout_is_eff_sample_size")
    assert size == pytest.approx(8 / 9, rel=1e-6)


@pytest.mark.parametrize("trainer", ["verl-0.6.1", "verl-0.7.0", *BY_K])
def test_the_minimum_of_sequence_weights_is_not_clamped_above(trainer):
    rows = [[15.0, 15.0]]
    assert metric(trainer, SEQUENCE, rows, "rollout_is_max") == pytest.approx(np.exp(20.0))
    assert metric(trainer, SEQUENCE, rows, "rollout_is_min") == pytest.approx(np.exp(30.0))


@pytest.mark.parametrize("trainer", BY_K)
def test_k1_sums_clamped_log_ratios_and_weights_do_not(trainer):
    config = {**SEQUENCE, "rollout_is_threshold": 100.0}
    config |= {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
    result = result_of(trainer, config, padded([[25.0, -21.0]]))
    assert (result.kept_tokens, result.kept_sequences) == (2, 1)
    assert result.weight_sum == pytest.approx(2.0 * np.exp(4.0))
    assert without_prefix(result.metrics)["rollout_rs_seq_sum_k1_mean"] == 0.0


@pytest.mark.parametrize("trainer", BY_K)
@pytest.mark.parametrize("bounds", ["0.5_2.0", "2.0", 2.0])
@pytest.mark.parametrize("option", ["token_k1", "seq_sum_k1"])
def test_values_on_a_bound_are_kept_and_beyond_it_rejected(trainer, bounds, option):
    config = {"rollout_is": None, "rollout_rs": option, "rollout_rs_threshold": bounds}
    at = float(np.log(2.0))
    assert result_of(trainer, config, padded([[at], [-at]])).kept_tokens == 2
    beyond = float(np.nextafter(at, 1.0))
    assert result_of(trainer, config, padded([[beyond], [-beyond]])).kept_tokens == 0


@pytest.mark.parametrize(
    ("trainer", "size"), [("verl-0.7.1", 1.0), ("verl-0.8.0", 34.24), ("verl-0.9", 34.24)]
)
def test_the_logged_ess_may_exceed_one(trainer, size):
    result = metric(trainer, SEQUENCE, [[-15.0, -15.0]], "rollout_is_eff_sample_size")
    assert result == pytest.approx(size, abs=0.01)
    actual = result_of(trainer, SEQUENCE, padded([[-15.0, -15.0]])).actual
    assert actual["ess_token_applied"] == actual["ess_seq_applied"] == pytest.approx(1.0)


@pytest.mark.parametrize("trainer", BY_K)
def test_chi2_is_clamped_and_k3_is_not(trainer):
    off = {"rollout_is": None}
    assert metric(trainer, off, [[-15.0, -15.0]], "chi2_seq") == pytest.approx(-1.0)
    assert metric(trainer, off, [[15.0, 15.0]], "chi2_seq") == pytest.approx(np.expm1(40.0))
    k3 = metric(trainer, off, [[25.0, 0.0, 0.0]], "k3_kl")
    assert k3 == pytest.approx((np.exp(25.0) - 26.0) / 3.0)
    config = {"rollout_is": None, "rollout_rs": "token_k3", "rollout_rs_threshold": 1.0}
    clamped = metric(trainer, config, [[25.0, 0.0, 0.0]], "rollout_rs_token_k3_max")
    assert clamped == pytest.approx(np.exp(20.0) - 21.0)
    config["rollout_rs"] = "token_k2"
    assert metric(trainer, config, [[25.0, 0.0, 0.0]], "rollout_rs_token_k2_max") == 200.0


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.9"])
def test_the_std_of_equal_weights_in_float32_is_near_zero_and_not_nan(trainer):
    """E[x^2] - E[x]^2 may be negative by rounding."""
    ratios = np.resize([-0.6, -0.03, 0.15, 0.6], 38).astype(np.float32)
    for tokens, ratio in enumerate(ratios.tolist(), start=2):
        result = result_of(trainer, TOKEN, padded([[ratio] * tokens]), arithmetic="float32")
        assert without_prefix(result.metrics)["rollout_is_std"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0"])
def test_a_lower_bound_above_the_upper_one_rejected_all_before_09(trainer):
    config = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5"}
    result = result_of(trainer, config, padded([[0.0, 0.1], [-0.1]]))
    assert (result.kept_tokens, result.kept_sequences) == (0, 0)


@pytest.mark.parametrize("trainer", ["verl-0.8.0", "verl-0.9"])
def test_a_second_underscore_is_part_of_the_number(trainer):
    config = {"rollout_is": "token", "rollout_is_threshold": "0.5_2_3"}
    result = result_of(trainer, config, padded([[float(np.log(22.0)), float(np.log(24.0)), -1.0]]))
    assert result.weight_sum == pytest.approx(22.0)


@pytest.mark.parametrize("trainer", ["verl-0.8.0", "verl-0.9"])
def test_the_ess_is_nan_if_all_icepop_weights_are_zero(trainer):
    config = {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}
    result = result_of(trainer, config, padded([[3.0, -3.0]]))
    assert np.isnan(without_prefix(result.metrics)["rollout_is_eff_sample_size"])
    assert result.actual["ess_token_applied"] is None
    assert result.weight_sum == 0.0


def test_weights_without_a_threshold_are_off():
    for name in (name for name in TRAINERS if name.startswith("verl") and name not in OLD):
        config = {"rollout_is": "token", "rollout_is_threshold": None}
        result = result_of(name, config, padded([[0.5]]))
        assert result.weight_sum is None, name
        assert not any("rollout_is_mean" in key for key in result.metrics), name


def test_060_without_a_threshold_logs_nothing():
    result = result_of("verl-0.6.0", {"rollout_is": True}, padded([[0.5, 3.0]]))
    assert (result.metrics, result.kept_tokens, result.weight_sum) == ({}, 2, None)


@pytest.mark.parametrize("trainer", BY_K)
def test_a_nan_token_is_rejected_and_enters_the_metrics(trainer):
    batch = padded([[0.0, 0.1], [0.2]])
    batch.old[0, 1] = np.nan
    config = {**TOKEN, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    result = result_of(trainer, config, batch)
    assert (result.kept_tokens, result.kept_sequences) == (2, 2)
    assert np.isnan(without_prefix(result.metrics)["kl"])
    rows = result_of(trainer, {**config, "rollout_rs": "seq_sum_k1"}, batch)
    assert (rows.kept_tokens, rows.kept_sequences) == (1, 1)
    assert rows.actual["ess_token_applied"] is None or np.isfinite(rows.actual["ess_token_applied"])


@pytest.mark.parametrize("trainer", ["verl-0.6.1", "verl-20251203", "verl-0.7.0"])
def test_a_nan_token_does_not_protect_its_row_from_the_veto(trainer):
    batch = padded([[-30.0, 0.0], [0.0, 0.0]])
    batch.old[0, 1] = np.nan
    config = {"rollout_is": None, "rollout_token_veto_threshold": 1e-4}
    result = result_of(trainer, config, batch)
    assert without_prefix(result.metrics)["rollout_is_veto_fraction"] == 0.5
    assert result.kept_sequences == 1
