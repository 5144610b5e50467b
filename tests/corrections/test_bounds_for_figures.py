"""Log-ratios at which a correction begins to act, for figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.corrections.bounds import log_bounds
from rcdiag.trainers import TRAINERS
from tests.corrections.builders import padded, plan_of, presets_of, result_of

LN2 = float(np.log(2.0))


def bounds(trainer: str, **config: Any) -> dict[str, list[float]]:
    return log_bounds(plan_of(trainer, config).corrections["it"])


def test_bounds_of_weights_are_where_they_change():
    assert bounds("verl-0.9", rollout_is="token") == {"token": pytest.approx([LN2])}
    popped = bounds("verl-0.9", rollout_is="sequence", rollout_is_threshold="0.5_4.0")
    assert popped == {"sequence": pytest.approx([2 * LN2, -LN2])}
    assert bounds("verl-0.9", rollout_is=None) == {}


@pytest.mark.parametrize(
    ("option", "level"),
    [("token_k1", "token"), ("seq_sum_k1", "sequence"), ("seq_mean_k1", "geometric")],
)
def test_bounds_of_k1_apply_to_one_over_the_ratio(option, level):
    result = bounds("verl-0.9", rollout_is=None, rollout_rs=option, rollout_rs_threshold="0.5_4.0")
    assert result == {level: pytest.approx([-2 * LN2, LN2])}


def test_bounds_of_token_k2_are_symmetric():
    result = bounds(
        "verl-0.9", rollout_is=None, rollout_rs="token_k2", rollout_rs_threshold="0.125"
    )
    assert result == {"token": pytest.approx([-0.5, 0.5])}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_preset_has_finite_bounds(trainer):
    for name, correction in presets_of(trainer).corrections.items():
        for logs in log_bounds(correction).values():
            assert np.isfinite(logs).all(), name


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("option", "text"), [("token_k1", "0.6_1.6"), ("seq_sum_k1", "0.5_4.0"), ("token_k2", "0.1")]
)
def test_tokens_just_inside_are_kept_and_just_outside_rejected(option, text, side):
    config = {"rollout_is": None, "rollout_rs": option, "rollout_rs_threshold": text}
    (logs,) = bounds("verl-0.9", **config).values()
    at = max(side * log for log in logs) * side
    assert result_of("verl-0.9", config, padded([[at * 0.999]])).kept_tokens == 1
    assert result_of("verl-0.9", config, padded([[at * 1.001]])).kept_tokens == 0


def test_a_lower_bound_of_zero_is_no_bound():
    result = bounds(
        "verl-0.7.0", rollout_rs="token", rollout_rs_threshold=2.0, rollout_rs_threshold_lower=0.0
    )
    assert result["token"] == pytest.approx([LN2])
