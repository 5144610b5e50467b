"""RLinf: its configuration files, refusals, and numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import Refused
from tests.corrections.builders import padded, result_of
from tests.trainers.config_files import read

MATH = """
algorithm:
  group_size: 8
  recompute_logprobs: true
  loss_type: actor
  loss_agg_func: token-mean
  ratio_clip_eps: 0.2
  clip_ratio_c: null
  importance_sampling_fix: true
  importance_sampling_clip: 1.0
rollout: {rollout_backend: sglang}
"""
ASYNC = """
algorithm: {loss_type: decoupled_actor_critic, behave_weight_threshold: 2.0, clip_ratio_c: 3.0}
rollout: {recompute_logprobs: true}
"""
DECOUPLED = {"loss_type": "decoupled_actor_critic"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            MATH,
            {
                "loss_type": "actor",
                "importance_sampling_fix": True,
                "importance_sampling_clip": 1.0,
                "recompute_logprobs": True,
            },
        ),
        (ASYNC, {**DECOUPLED, "behave_weight_threshold": 2.0, "recompute_logprobs": True}),
        ("algorithm: {ratio_clip_eps: 0.2}\n", {}),
    ],
)
def test_files_of_rlinf(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert (found.trainer.name, dict(found.settings)) == ("rlinf", settings)


def test_null_turns_the_dual_clip_off(tmp_path: Path) -> None:
    loss = find_trainer("rlinf").config.loss
    assert loss(read(tmp_path, MATH).document).own["clip_c"] is None
    assert loss(read(tmp_path, ASYNC).document).own["clip_c"] == 3.0
    choice = loss(read(tmp_path, ASYNC).document)
    assert choice.loss == "decoupled_ppo"
    assert "clip_c" not in loss(read(tmp_path, "algorithm: {ratio_clip_eps: 0.2}\n").document).own


# Ratios 4, 1/2 and 1; log-ratios 2 log 2, -log 2 and 0.
BATCH = padded([[math.log(4.0), -math.log(2.0)], [0.0]])


def test_a_clamp_by_hand() -> None:
    config = {"importance_sampling_fix": True, "importance_sampling_clip": 2.0}
    result = result_of("rlinf", config, BATCH)
    assert result.weight_sum == pytest.approx(2.0 + 0.5 + 1.0)
    assert (result.kept_tokens, result.kept_sequences) == (3, 2)
    # Despite its name (KL) it is a mean of absolute differences.
    assert result.metrics == {"actor/rollout_train_kl": pytest.approx(math.log(2.0))}


def test_a_threshold_by_hand() -> None:
    result = result_of("rlinf", {**DECOUPLED, "behave_weight_threshold": 2.0}, BATCH)
    assert result.weight_sum == pytest.approx(4.0 + 0.5 + 1.0)
    assert (result.kept_tokens, result.kept_sequences) == (2, 2)
    assert result.metrics["actor/behav_clip_fraction"] == pytest.approx(1 / 3)
    assert result.metrics["actor/behav_approx_kl"] == pytest.approx(math.log(2.0) / 2)


def test_a_count_of_zero_is_replaced_by_one() -> None:
    """As in RLinf: if none of two tokens is kept, the logged dropped share is one half."""
    config = {**DECOUPLED, "behave_weight_threshold": 0.5}
    metrics = result_of("rlinf", config, padded([[1.0, 1.0]])).metrics
    assert metrics["actor/behav_clip_fraction"] == pytest.approx(0.5)
    assert metrics["actor/behav_approx_kl"] == 0.0


def test_without_old_log_probs_nothing_is_logged() -> None:
    assert result_of("rlinf", {"recompute_logprobs": False}, BATCH).metrics == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"importance_sampling_fix": True}, "RLinf stops without it"),
        ({"loss_type": "opd"}, "not one of its values"),
        ({**DECOUPLED, "recompute_logprobs": False}, "interpolate rollout and current"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    found = find_trainer("rlinf")
    with pytest.raises(Refused, match=message):
        found.read({**found.settings, **settings})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"importance_sampling_clip": 2.0}, "without importance_sampling_fix"),
        ({"behave_weight_threshold": 2.0}, "of loss_type decoupled_actor_critic"),
        ({**DECOUPLED, "importance_sampling_fix": True}, "weights of its own"),
        ({"importance_sampling_fix": True, "recompute_logprobs": False}, "turns it on"),
    ],
)
def test_settings_without_effect(settings: dict[str, Any], sentence: str) -> None:
    found = find_trainer("rlinf")
    assert [one for one in found.ignored({**found.settings, **settings}) if sentence in one]


def test_presets_are_computed() -> None:
    found = find_trainer("rlinf")
    plan = plan_corrections(found, dict(found.presets))
    assert set(plan.corrections) == set(found.presets)
