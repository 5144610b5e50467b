"""What the lines on presets say: which have little effect, and which leave no update."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

import rcdiag as api
from rcdiag.pages.score.words import preset_lines
from tests.builders import write_table

ROWS, TOKENS = 24, 40


@pytest.fixture
def vanishing(tmp_path) -> Path:
    """Return a table whose sequence log-ratios are all -24, clamped to -20 by verl."""
    return write_table(
        tmp_path / "t.parquet",
        response_ids=[list(range(TOKENS))] * ROWS,
        rollout_log_probs=[[-0.5] * TOKENS] * ROWS,
        old_log_probs=[[-1.1] * TOKENS] * ROWS,
        advantage=[1.0, -1.0] * (ROWS // 2),
    )


def test_equal_weights_near_zero_are_no_small_effect(vanishing):
    """All weights are exp(-20), so the ESS is 1; the update is 2e-9 of that without weights."""
    result = api.score(vanishing)
    correction = result.corrections["decoupled_seq_is"]
    assert correction.actual["ess_seq_applied"] == pytest.approx(1.0)
    assert correction.weight_sum == pytest.approx(ROWS * TOKENS * exp(-20.0))
    assert correction.level == "error"
    lines = dict(preset_lines(result))
    assert "decoupled_seq_is and 1 more: weights average 2e-09, no update" in lines["cost most"]
    assert not any("decoupled_seq_is" in text for label, text in lines.items() if "effect" in label)


def test_an_update_that_weights_near_zero_leave_is_unsafe(vanishing):
    presets = api.replay(vanishing).presets
    health = presets["decoupled_seq_is"].health
    rules = {rule.name: rule for rule in health.rules}
    assert rules["update_size"].value == pytest.approx(exp(-20.0))
    assert rules["update_size"].level == health.verdict == "error"
    assert {one.name: one.value for one in presets["disabled"].health.rules}[
        "update_size"
    ] == pytest.approx(1.0)
