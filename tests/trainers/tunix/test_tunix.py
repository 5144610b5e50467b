"""Tunix: its configuration files, and numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rcdiag.trainers import find_trainer
from rcdiag.trainers.trainer import Refused
from tests.corrections.builders import padded, result_of
from tests.losses.rules import evaluate
from tests.trainers.config_files import read
from tests.trainers.toy import update

FROZENLAKE = """
agentic_grpo_config:
  num_generations: 8
  epsilon: 0.003
  epsilon_high: 0.005
  loss_algo: grpo
  loss_agg_mode: "sequence-mean-token-mean"
  sampler_is: "token"
  sampler_is_threshold: 2.0
"""
PLAIN = """
rl_training_config: {max_steps: 10}
grpo_config: {num_generations: 4, beta: 0.08, epsilon: 0.1, use_rollout_logps: false}
"""
PPO = """
rl_training_config: {max_steps: 10}
ppo_config: {gamma: 1.0, gae_lambda: 0.95, beta: 0.08, epsilon: 0.2, epsilon_c: 3.0}
"""
# Ratios 4, 1/2 and 1 of two responses.
BATCH = padded([[math.log(4.0), -math.log(2.0)], [0.0]])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (FROZENLAKE, {"sampler_is": "token", "sampler_is_threshold": 2.0}),
        ("agentic_grpo_config: {beta: 0.0}\n", {}),
        (PLAIN, {"use_rollout_logps": False}),
        (PPO, {"use_rollout_logps": False}),
        (PPO + FROZENLAKE, {"sampler_is": "token", "sampler_is_threshold": 2.0}),
        (PLAIN + FROZENLAKE, {"sampler_is": "token", "sampler_is_threshold": 2.0}),
        (PLAIN + FROZENLAKE + "training_mode: grpo\n", {"use_rollout_logps": False}),
    ],
)
def test_files_of_tunix(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert (found.trainer.name, dict(found.settings)) == ("tunix", settings)


def test_the_loss_of_a_file(tmp_path: Path) -> None:
    choice = find_trainer("tunix").config.loss(read(tmp_path, FROZENLAKE).document)
    assert (choice.loss, choice.aggregation) == ("vanilla", "seq-mean-token-mean")
    assert choice.own == {"clip_low": 0.003, "clip_high": 0.005}
    plain = find_trainer("tunix").config.loss(read(tmp_path, PLAIN).document)
    assert plain.own == {"clip_low": 0.1, "clip_high": 0.1}
    ppo = find_trainer("tunix").config.loss(read(tmp_path, PPO).document)
    assert ppo.aggregation == "token-mean"
    assert ppo.own == {"clip_low": 0.2, "clip_high": 0.2, "clip_c": 3.0}
    gspo = FROZENLAKE.replace("loss_algo: grpo", "loss_algo: gspo-token")
    refused = find_trainer("tunix").config.loss(read(tmp_path, gspo).document).refused
    assert "gspo-token is a policy loss that rcdiag does not compute" in refused


def test_weights_by_hand() -> None:
    result = result_of("tunix", {"sampler_is": "token"}, BATCH)
    assert result.weight_sum == pytest.approx(2.0 + 0.5 + 1.0)
    logged = result.metrics
    assert logged["sampler_is/train/weight_mean"] == pytest.approx(3.5 / 3)
    assert logged["sampler_is/train/weight_max"] == 2.0
    assert logged["sampler_is/train/frac_clipped_at_threshold"] == pytest.approx(1 / 3)
    assert logged["sampler_trainer/train/logp_diff_mean"] == pytest.approx(math.log(2.0))
    assert logged["sampler_trainer/train/logp_diff_max"] == pytest.approx(math.log(4.0))


def test_the_mismatch_is_logged_in_bypass_mode_too() -> None:
    result = result_of("tunix", {}, BATCH)
    assert result.weight_sum is None
    assert result.metrics["sampler_trainer/train/logp_diff_max"] == pytest.approx(math.log(4.0))
    assert not [name for name in result.metrics if name.startswith("sampler_is/")]


def test_without_the_samplers_log_probs_nothing_is_logged() -> None:
    config = {"use_rollout_logps": False, "sampler_is": "token"}
    result = result_of("tunix", config, BATCH)
    assert (result.weight_sum, result.metrics) == (None, {})


def test_a_correlation_of_constant_probabilities_is_undefined() -> None:
    """Each policy gives all tokens the same probability, so the variance is at its floor."""
    metrics = result_of("tunix", {}, padded([[0.5, 0.5]])).metrics
    assert metrics["sampler_trainer/train/probs_pearson_corr"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler_is": "sequence"}, "not one of its values"),
        ({"sampler_is": "token", "sampler_is_threshold": 0}, "a number above 0"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    found = find_trainer("tunix")
    with pytest.raises(Refused, match=message):
        found.read({**found.settings, **settings})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sampler_is_threshold": 3.0}, "without sampler_is"),
        ({"sampler_is": "token", "use_rollout_logps": False}, "are not kept"),
    ],
)
def test_settings_without_effect(settings: dict[str, Any], sentence: str) -> None:
    found = find_trainer("tunix")
    (said,) = found.ignored({**found.settings, **settings})
    assert sentence in said


def test_a_loss_by_hand() -> None:
    """Rows of ratios e^0.1, e^-0.1, e^1.5 with A = 1 and e^-1.2, e^-0.5 with A = -1, clip 0.2."""
    rules = find_trainer("tunix").update
    value = evaluate(update("tunix"), "vanilla", rules.defaults, "tunix").loss
    rows = -(math.exp(0.1) + math.exp(-0.1) + 1.2) / 3, 0.8
    assert value == pytest.approx(sum(rows) / 2)
