"""PipelineRL: its configuration files, and numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import NotComputed
from tests.corrections.builders import padded, result_of
from tests.losses.rules import evaluate
from tests.trainers.config_files import read
from tests.trainers.toy import update

WHOLE = """
finetune:
  seq_packing: true
  rl: {policy_loss: ppo, epsilon_low: 0.2, epsilon_high: 0.28, kl_coef: 0.0}
actor: {llm_max_rollouts: 64}
"""
SCRIPT = "python -m pipelinerl.launch --config-name math finetune.rl.epsilon_high=4 model_path=x\n"
# Ratios 4, 1/2 and 1 of two responses.
BATCH = padded([[math.log(4.0), -math.log(2.0)], [0.0]])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (WHOLE, {"policy_loss": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.28}),
        (SCRIPT, {"epsilon_high": 4}),
        ("finetune: {rl: {kl_coef: 0.0}}\n", {}),
    ],
)
def test_files_of_pipelinerl(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert (found.trainer.name, dict(found.settings)) == ("pipelinerl", settings)


def test_reinforce_truncates_the_ratio_and_logs_the_truncated_one() -> None:
    result = result_of("pipelinerl", {"epsilon_high": 1.0}, BATCH)
    assert result.weight_sum == pytest.approx(2.0 + 0.5 + 1.0)
    assert (result.kept_tokens, result.kept_sequences) == (3, 2)
    logged = result.metrics
    assert logged["rl/ratio_new_old"] == pytest.approx((1.25 + 1.0) / 2)
    assert logged["rl/ratio_new_old_squared_sum"] == pytest.approx(4.0 + 0.25 + 1.0)
    assert logged["rl/ess"] == pytest.approx(3.5**2 / 5.25 / 3)
    assert logged["rl/clamp_log_ratio_new_old_indicator"] == pytest.approx((0.5 + 0.0) / 2)
    # KL and distance use the untruncated ratio.
    distances = math.log(4.0), math.log(2.0)
    assert logged["rl/mean_abs_log_ratio_new_old"] == pytest.approx(sum(distances) / 4)


def test_ppo_logs_the_ratio_and_counts_both_sides() -> None:
    config = {"policy_loss": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2}
    result = result_of("pipelinerl", config, BATCH)
    assert result.weight_sum is None
    assert result.metrics["rl/ess"] == pytest.approx(5.5**2 / 17.25 / 3)
    assert result.metrics["rl/clamp_log_ratio_new_old_indicator"] == pytest.approx(0.5)


def test_a_row_without_a_token_counts_as_a_sample() -> None:
    alone = result_of("pipelinerl", {}, padded([[0.3]])).metrics
    beside = result_of("pipelinerl", {}, padded([[0.3], []])).metrics
    assert beside["rl/kl_new_old"] == pytest.approx(alone["rl/kl_new_old"] / 2)
    assert beside["rl/ess"] == pytest.approx(alone["rl/ess"])


def test_losses_by_hand() -> None:
    """Ratios e^0.1, e^-0.1, e^1.5 with A = 1 and e^-1.2, e^-0.5 with A = -1, over two rows."""
    rules = find_trainer("pipelinerl").update
    value = evaluate(update("pipelinerl"), "vanilla", rules.defaults, "pipelinerl").loss
    assert value == pytest.approx((-1.02 - math.exp(-0.1) - 1.02 + 2 * 0.98) / 2)
    value = evaluate(update("pipelinerl"), "truncated_pg", rules.defaults, "pipelinerl").loss
    current = [-0.9, -0.6, -0.5, -1.9, -2.0]
    weights = [1.02, math.exp(-0.1), 1.02, -math.exp(-1.2), -math.exp(-0.5)]
    products = [one * weight for one, weight in zip(current, weights, strict=True)]
    assert value == pytest.approx(-sum(products) / 2)


def test_gspo_is_not_computed() -> None:
    found = find_trainer("pipelinerl")
    with pytest.raises(NotComputed, match="gspo gives a sequence"):
        found.read({**found.settings, "policy_loss": "gspo"})


def test_settings_without_effect() -> None:
    found = find_trainer("pipelinerl")
    (sentence,) = found.ignored({**found.settings, "epsilon_low": 0.5})
    assert sentence == "epsilon_low has no effect with policy_loss reinforce"
    assert not found.ignored({**found.settings, "policy_loss": "ppo", "epsilon_low": 0.5})


def test_three_policies_are_not_written() -> None:
    verl = find_trainer("verl")
    plan = plan_corrections(verl, {"it": {"rollout_is": "token"}})
    with pytest.raises(RcdiagError, match="its old ones are the sampler's"):
        emit(plan.corrections["it"], "pipelinerl")
