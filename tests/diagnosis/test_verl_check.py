"""verl's own check of its weights, as described in its document of 2025-10-27."""

from __future__ import annotations

import math

import pytest

from rcdiag.diagnosis.correction_health import verl_check

HEALTHY = {
    "mismatch/rollout_is_mean": 1.0,
    "mismatch/rollout_is_eff_sample_size": 0.9,
    "mismatch/rollout_is_veto_fraction": 0.0,
    "mismatch/rollout_is_std": 0.2,
    "mismatch/mismatch_kl": 0.001,
    "mismatch/mismatch_k3_kl": 9.0,  # the check does not read k3
}


def test_five_numbers_of_the_generation_of_the_document():
    assert verl_check(HEALTHY) == ([], 5)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("mismatch/rollout_is_mean", 0.49, "rollout_is_mean 0.49, outside 0.5 to 2"),
        ("mismatch/rollout_is_mean", 2.01, "rollout_is_mean 2.01, outside 0.5 to 2"),
        ("mismatch/rollout_is_eff_sample_size", 0.29, "rollout_is_eff_sample_size 0.29, below 0.3"),
        ("mismatch/rollout_is_veto_fraction", 0.11, "rollout_is_veto_fraction 0.11, above 0.1"),
        ("mismatch/rollout_is_std", 1.1, "rollout_is_std 1.1, above 1"),
        ("mismatch/mismatch_kl", -0.11, "kl -0.11, beyond 0.1"),
    ],
)
def test_each_warning(key, value, says):
    assert verl_check({**HEALTHY, key: value}) == ([says], 5)


@pytest.mark.parametrize(
    ("key", "bounds"),
    [
        ("mismatch/rollout_is_mean", (0.5, 2.0, math.nan)),
        ("mismatch/rollout_is_eff_sample_size", (0.3, math.nan)),
        ("mismatch/rollout_is_veto_fraction", (0.1, math.nan)),
        ("mismatch/rollout_is_std", (1.0, math.nan)),
        ("mismatch/mismatch_kl", (0.1, -0.1, math.nan)),
    ],
)
def test_a_number_on_a_bound_and_nan_give_no_warning(key, bounds):
    for value in bounds:
        assert verl_check({**HEALTHY, key: value}) == ([], 5)


def test_a_generation_without_veto_has_four_numbers():
    later = {
        "rollout_corr/rollout_is_mean": 3.0,
        "rollout_corr/rollout_is_eff_sample_size": 0.1,
        "rollout_corr/rollout_is_std": 0.5,
        "rollout_corr/kl": 0.0,
    }
    warnings, tests = verl_check(later)
    assert (len(warnings), tests) == (2, 4)
