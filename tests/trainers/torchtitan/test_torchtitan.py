"""torchtitan's RL: its configuration file, and tokens without a sampler log-prob."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcdiag.trainers.own_config import read_trainer_config
from tests.corrections.builders import padded, result_of

CONFIG = """
async_loop: {target_offpolicy_steps: 5}
trainer:
  loss: {num_chunks: 8, loss_fn: {ratio_clip_low: 0.2, ratio_clip_high: 0.28}}
"""


def test_a_file_of_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    found = read_trainer_config(path)
    assert (found.trainer.name, dict(found.settings)) == (
        "torchtitan",
        {"target_offpolicy_steps": 5},
    )
    correction = found.trainer.read({**found.trainer.settings, **found.settings})
    assert (correction.mode, correction.weighting, correction.rejections) == ("bypass", None, ())


def test_differences_that_cancel_show_in_the_share_of_tokens() -> None:
    """Log-ratios 1 and -1: their mean is 0, and both tokens differ."""
    metrics = result_of("torchtitan", {}, padded([[1.0, -1.0]])).metrics
    assert metrics["bit_wise/logprob_diff/mean"] == pytest.approx(0.0)
    assert metrics["bit_wise/ratio_tokens_different/mean"] == 1.0
    assert metrics["bit_wise/logprob_diff/max"] == pytest.approx(1.0)
