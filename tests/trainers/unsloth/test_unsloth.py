"""Unsloth: TRL's settings with another default, and metrics distorted by padding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rcdiag.trainers import find_trainer
from rcdiag.trainers.own_config import read_trainer_config
from tests.corrections.builders import padded, result_of

MODE = {"vllm_importance_sampling_mode": "token_truncate"}


def test_the_correction_is_off_where_trl_has_it_on(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text("use_vllm: true\nvllm_importance_sampling_mode: token_truncate\n")
    settings = read_trainer_config(path, trainer="unsloth").settings
    for name, on in (("unsloth", False), ("trl", True)):
        trainer = find_trainer(name)
        correction = trainer.read({**trainer.settings, **settings})
        assert (correction.weighting is not None) == on
    unsloth = find_trainer("unsloth")
    (sentence,) = unsloth.ignored({**unsloth.settings, **MODE})
    assert sentence.startswith("vllm_importance_sampling_mode has no effect")


@pytest.mark.parametrize(
    ("own", "trainer"),
    [
        ("fast_inference: true", "unsloth"),
        ("use_gradient_checkpointing: unsloth", "unsloth"),
        ("use_gradient_checkpointing: true", "trl-1.16"),
    ],
)
def test_a_file_with_a_setting_of_its_own_is_told_from_that_of_trl(
    tmp_path: Path, own: str, trainer: str
) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(f"{own}\nuse_vllm: true\nnum_generations: 8\nepsilon: 0.2\n")
    assert read_trainer_config(path).trainer.name == trainer


def test_metrics_distorted_by_padding_are_left_out() -> None:
    """Ratios 4, 1/2 and 1: the largest weight is the bound, the largest distance ln 4."""
    batch = padded([[math.log(4.0), -math.log(2.0)], [0.0]])
    result = result_of("unsloth", {"vllm_importance_sampling_correction": True, **MODE}, batch)
    assert result.weight_sum == 3.0 + 0.5 + 1.0
    assert result.metrics == {
        "sampling/sampling_logp_difference/max": math.log(4.0),
        "sampling/importance_sampling_ratio/max": 3.0,
    }
