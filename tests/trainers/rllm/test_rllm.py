"""rLLM: one block of settings, which its two backends interpret differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.losses.clipped import VANILLA
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit
from rcdiag.trainers.own_config import TrainerConfig
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.trainers.trainer import Refused
from tests.corrections.builders import padded, result_of
from tests.losses.rules import evaluate
from tests.trainers.config_files import read
from tests.trainers.toy import update

FIREWORKS = """
rllm:
  backend: fireworks
  algorithm:
    rollout_correction: {bypass_mode: false, tis_mode: sequence, tis_cap: 1.5}
"""
SCRIPT = """
python -m examples.train rllm/backend=verl \\
  rllm.algorithm.rollout_correction.tis_mode=token \\
  rllm.algorithm.rollout_correction.tis_cap=3.0 \\
  actor_rollout_ref.actor.clip_ratio_c=4.0
"""
CAPPED = {"tis_mode": "token", "tis_cap": 3.0}


def plan_of(found: TrainerConfig) -> Plan:
    return plan_corrections(found.trainer, {"it": found.settings}, findings=found.findings)


@pytest.mark.parametrize(
    ("text", "trainer", "settings"),
    [
        (
            FIREWORKS,
            "rllm-fireworks",
            {
                "backend": "fireworks",
                "bypass_mode": False,
                "tis_mode": "sequence",
                "tis_cap": 1.5,
            },
        ),
        (SCRIPT, "rllm-verl", CAPPED),
        (SCRIPT.replace("=verl", "=fireworks"), "rllm-fireworks", CAPPED),
        (SCRIPT.replace("=verl", "=tinker"), "rllm-verl", {**CAPPED, "backend": "tinker"}),
        ("python train.py rllm/backend=fireworks a.b=1\n", "rllm-fireworks", {}),
        ("rllm: {backend: verl}\n", "rllm-verl", {"backend": "verl"}),
        ("rllm: {algorithm: {eps_clip: 0.2}}\n", "rllm-verl", {}),
    ],
)
def test_a_file_is_read_as_its_backend_does(
    text: str, trainer: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = read(tmp_path, text)
    assert (found.trainer.name, dict(found.settings)) == (trainer, settings)


def test_a_file_of_rllm_with_verls_blocks_is_not_taken_for_verls(tmp_path: Path) -> None:
    """A whole configuration of rLLM on verl contains verl's blocks."""
    text = "actor_rollout_ref: {actor: {clip_ratio: 0.2}}\nalgorithm: {adv_estimator: grpo}\n"
    block = "rllm: {backend: verl, algorithm: {rollout_correction: {tis_mode: token}}}\n"
    assert read(tmp_path, text).trainer.family == "verl"
    assert read(tmp_path, text + block).trainer.name == "rllm-verl"


@pytest.mark.parametrize(
    ("trainer", "sequence"),
    # Log-ratios 0.2 and 0.4 of one response: their sum, or their mean.
    [("rllm-verl", 2 * np.exp(0.6)), ("rllm-fireworks", 2 * np.exp(0.3))],
)
def test_sequence_is_a_product_or_a_mean(trainer: str, sequence: float) -> None:
    config = {"tis_mode": "sequence", "tis_cap": 10.0}
    assert result_of(trainer, config, padded([[0.2, 0.4]])).weight_sum == pytest.approx(sequence)


def test_null_is_off_on_verl_and_truncates_at_five_on_fireworks(tmp_path: Path) -> None:
    batch = padded([[np.log(8.0), np.log(0.25)]])
    assert result_of("rllm-verl", {}, batch).weight_sum is None
    assert result_of("rllm-fireworks", {"tis_cap": 2.0}, batch).weight_sum == pytest.approx(5.25)
    text = "rllm: {backend: fireworks, algorithm: {rollout_correction: {tis_mode: null}}}\n"
    (finding,) = plan_of(read(tmp_path, text)).findings
    assert finding.slug == "tis-in-spite-of-null"
    assert not [one for one in plan_of(read(tmp_path, FIREWORKS)).findings]


def test_tokens_are_clamped_before_their_mean_is_taken() -> None:
    """30 and 0 nats are clamped to 20 and 0 on Fireworks, with mean 10; rejection is unclamped."""
    result = result_of(
        "rllm-fireworks", {"tis_mode": "sequence", "tis_cap": 1e9}, padded([[30.0, 0.0]])
    )
    assert result.weight_sum == pytest.approx(2 * np.exp(10.0))
    assert result.metrics["offpolicy/logprob_abs_diff/max"] == pytest.approx(30.0)


def test_bypass_mode_shows_nothing_of_the_mismatch() -> None:
    batch = padded([[0.2, 0.4], [-1.0, 0.3]])
    metrics = result_of("rllm-fireworks", {"bypass_mode": True}, batch).metrics
    assert metrics["offpolicy/kl"] == metrics["offpolicy/prob_abs_diff/max"] == 0.0
    assert metrics["offpolicy/ratio/max"] == 1.0
    assert metrics["offpolicy/training_ppl"] == metrics["offpolicy/rollout_ppl"]


@pytest.mark.parametrize("settings", [{}, {"tis_mode": "token", "bypass_mode": False}])
def test_tinker_trains_in_bypass_mode(settings: dict[str, Any], tmp_path: Path) -> None:
    correction = find_trainer("rllm-verl").read(
        {**find_trainer("rllm-verl").settings, **settings, "backend": "tinker"}
    )
    assert (correction.mode, correction.weighting) == ("bypass", None)
    plan = plan_of(read(tmp_path, SCRIPT.replace("=verl", "=tinker")))
    assert plan.corrections["it"] == correction
    assert not plan.findings
    result = result_of("rllm-verl", {**settings, "backend": "tinker"}, padded([[0.2, 0.4]]))
    assert result.metrics == {}


@pytest.mark.parametrize(
    ("trainer", "settings", "message"),
    [
        ("rllm-verl", {"bypass_mode": True, "tis_mode": "token"}, "rLLM stops"),
        ("rllm-verl", {"backend": "fireworks"}, "the numbers of verl are requested"),
        ("rllm-verl", {"backend": "megatron_x"}, "not one of its values"),
        ("rllm-verl", {"tis_mode": "token", "tis_cap": "2_1"}, "tis_cap: '2_1' wants 0 < lower"),
        ("rllm-verl", {"tis_mode": "geometric"}, "not one of its values"),
        ("rllm-fireworks", {"tis_mode": "token", "tis_cap": "0.5_5.0"}, "wanted a number"),
        ("rllm-fireworks", {"backend": "verl"}, "the numbers of fireworks are requested"),
    ],
)
def test_refused_settings(trainer: str, settings: dict[str, Any], message: str) -> None:
    found = find_trainer(trainer)
    with pytest.raises(Refused, match=message):
        found.read({**found.settings, **settings})


@pytest.mark.parametrize(
    ("trainer", "settings", "sentence"),
    [
        ("rllm-verl", {"tis_cap": 3.0}, "without tis_mode"),
        ("rllm-fireworks", {"tis_cap": 3.0}, "truncated at 5"),
        ("rllm-fireworks", {"tis_mode": "token", "bypass_mode": True}, "every weight is 1"),
    ],
)
def test_settings_without_effect(trainer: str, settings: dict[str, Any], sentence: str) -> None:
    found = find_trainer(trainer)
    (said,) = found.ignored({**found.settings, **settings})
    assert sentence in said


@pytest.mark.parametrize(
    ("of", "trainer", "lacks"),
    [
        ("rllm-verl", "rllm-fireworks", "products of ratios"),
        ("rllm-fireworks", "rllm-verl", "weights of geometric means"),
    ],
)
def test_a_sequence_is_not_carried_to_the_other_backend(of: str, trainer: str, lacks: str) -> None:
    found = find_trainer(of)
    correction = found.read({**found.settings, "tis_mode": "sequence"})
    with pytest.raises(RcdiagError, match=lacks):
        emit(correction, trainer)


def test_losses_are_those_of_verl_or_ppo_without_dual_clip() -> None:
    verl, fireworks = (find_trainer(f"rllm-{name}").update for name in ("verl", "fireworks"))
    assert verl is find_trainer("verl-0.8.0").update
    assert verl.losses["vanilla"] is VANILLA
    # By hand: ratios e^0.1, e^-0.1, 1.2 | e^-1.2 and e^-0.5 clipped at 0.8; summed.
    value = evaluate(update("rllm-fireworks"), "vanilla", fireworks.defaults, "rllm-fireworks").loss
    assert value == pytest.approx(-np.exp(0.1) - np.exp(-0.1) - 1.2 + 0.8 + 0.8)
