"""tinker-cookbook: its configuration files, and numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rcdiag.trainers import find_trainer
from rcdiag.trainers.emit import emit
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import NotComputed
from tests.corrections.builders import padded, result_of
from tests.losses.rules import evaluate
from tests.trainers.config_files import read
from tests.trainers.toy import update

CONFIG = """
{"loss_fn": "cispo", "loss_fn_config": {"clip_high_threshold": 5.0}, "num_substeps": 1,
 "kl_penalty_coef": 0.0, "log_path": "runs/1"}
"""
# Ratios 8, 1/2 and 1 of two responses.
BATCH = padded([[math.log(8.0), -math.log(2.0)], [0.0]])


@pytest.mark.parametrize(
    ("text", "settings", "clip"),
    [
        (
            CONFIG,
            {"loss_fn": "cispo", "loss_fn_config.clip_high_threshold": 5.0},
            {"clip_low": 1.0, "clip_high": 4.0},
        ),
        (
            '{"loss_fn": "ppo", "num_substeps": 2}',
            {"loss_fn": "ppo"},
            {"clip_low": pytest.approx(0.2), "clip_high": pytest.approx(0.2)},
        ),
        ('{"loss_fn": "importance_sampling", "num_substeps": 2}', None, {}),
    ],
)
def test_files(text: str, settings: Any, clip: Any, tmp_path: Path) -> None:
    found = read(tmp_path, text)
    expected = {"loss_fn": "importance_sampling"} if settings is None else settings
    assert (found.trainer.name, dict(found.settings)) == ("tinker-cookbook", expected)
    assert found.trainer.config.loss(found.document).own == clip


def test_numbers_by_hand() -> None:
    metrics = result_of("tinker-cookbook", {}, BATCH).metrics
    logs = math.log(8.0), -math.log(2.0)
    assert metrics["optim/kl_sample_train_v1"] == pytest.approx(-sum(logs) / 3)
    squares = sum(one**2 for one in logs)
    assert metrics["optim/kl_sample_train_v2"] == pytest.approx(squares / 6)


@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({}, 9.5),  # no bound
        ({"loss_fn": "cispo"}, 4.0 + 0.5 + 1.0),
        ({"loss_fn": "cispo", "loss_fn_config.clip_low_threshold": 0.75}, 4.0 + 0.75 + 1.0),
        ({"loss_fn": "ppo"}, None),
    ],
)
def test_weights_by_hand(settings: dict[str, Any], total: float | None) -> None:
    found = result_of("tinker-cookbook", settings, BATCH).weight_sum
    assert found == (None if total is None else pytest.approx(total))


@pytest.mark.parametrize("preset", ["default", "bypass_ppo", "bypass_cispo"])
def test_a_written_configuration_is_read_back(preset: str, tmp_path: Path) -> None:
    trainer = find_trainer("tinker-cookbook")
    plan = plan_corrections(trainer, {preset: trainer.presets[preset]})
    text = emit(plan.corrections[preset], "tinker-cookbook").text
    found = read(tmp_path, text, "tinker-cookbook")
    assert trainer.read({**trainer.settings, **found.settings}) == plan.corrections[preset]


def test_losses_by_hand() -> None:
    """Ratios e^0.1, e^-0.1, e^1.5 with A = 1 and e^-1.2, e^-0.5 with A = -1; sums over tokens."""
    rules = find_trainer("tinker-cookbook").update
    ratios = [math.exp(one) for one in (0.1, -0.1, 1.5, -1.2, -0.5)]
    value = evaluate(update("tinker-cookbook"), "importance_weighted", rules.defaults,
                     "tinker-cookbook").loss  # fmt: skip
    assert value == pytest.approx(-sum(ratios[:3]) + sum(ratios[3:]))
    value = evaluate(update("tinker-cookbook"), "vanilla", rules.defaults, "tinker-cookbook").loss
    assert value == pytest.approx(-ratios[0] - ratios[1] - 1.2 + 0.8 + 0.8)
    own = rules.defaults.changed(clip_low=1.0, clip_high=3.0)
    value = evaluate(update("tinker-cookbook"), "cispo", own, "tinker-cookbook").loss
    current = [-0.9, -0.6, -0.5, -1.9, -2.0]
    weights = [ratios[0], ratios[1], 4.0, -ratios[3], -ratios[4]]
    assert value == pytest.approx(
        -sum(one * weight for one, weight in zip(current, weights, strict=True))
    )


def test_dro_is_not_computed() -> None:
    found = find_trainer("tinker-cookbook")
    with pytest.raises(NotComputed, match="its code is not public"):
        found.read({**found.settings, "loss_fn": "dro"})


def test_bounds_have_no_effect_on_the_bare_ratio() -> None:
    found = find_trainer("tinker-cookbook")
    settings = {**found.settings, "loss_fn_config.clip_high_threshold": 2.0}
    (sentence,) = found.ignored(settings)
    assert "has no effect with loss_fn importance_sampling" in sentence
