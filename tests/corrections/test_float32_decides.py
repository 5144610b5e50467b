"""If float32 changes the side of a bound for a sequence, a finding gives both numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rcdiag


def table(log_ratio: float) -> dict:
    rollout = [[-1.0, -0.5, -2.0], [-0.7, -1.5, -0.1]]
    return {
        "response_ids": [[1, 2, 3], [4, 5, 6]],
        "rollout_log_probs": rollout,
        "old_log_probs": [[value + log_ratio for value in row] for row in rollout],
    }


def scored(log_ratio: float, arithmetic: str = "float64") -> rcdiag.ScoreResult:
    preset = "decoupled_geo_rs"
    return rcdiag.score(
        table(log_ratio),
        presets=preset,
        settings={preset: {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.1"}},
        arithmetic=arithmetic,
    )


def test_a_sequence_just_beside_the_bound():
    """The k1 bounds keep ratios between 1 / 1.1 and 1 / 0.999 = 1.001001."""
    ends = -math.log(0.999), -math.log(np.float32(0.999))
    assert ends[0] != ends[1]
    between = sum(ends) / 2
    result = scored(between)
    (correction,) = result.corrections.values()
    rounded = scored(between, "float32")
    (theirs,) = rounded.corrections.values()
    assert correction.kept_tokens != theirs.kept_tokens
    assert correction.in_float32["kept_tokens"] == theirs.kept_tokens
    assert correction.in_float32["kept_sequences"] == theirs.kept_sequences
    finding = next(one for one in result.findings if one.slug == "float32-decides")
    assert f"{theirs.kept_tokens} tokens" in finding.message
    assert theirs.in_float32 is None


@pytest.mark.parametrize("log_ratio", [0.0, 0.0005, -0.2, 0.3])
def test_no_finding_away_from_the_bounds(log_ratio):
    result = scored(log_ratio)
    (correction,) = result.corrections.values()
    assert correction.in_float32 is None
    assert "float32-decides" not in [one.slug for one in result.findings]
