"""Log-probs of any size give correct metrics, or null and a finding, never a traceback."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import rcdiag
from tests.builders import ids_like, write_table

ROWS = 40
HUGE = [-2e12, -1e13, -1e16, -1e38, -1e153, -1e155, -1e308, -np.inf]
LARGE = [-50.0, -1e9, -1e12]


def table_of(path, value: float, where: str):
    """Write `value` into every fifth row of some policies; returns path and log-probs."""
    generator = np.random.default_rng(7)
    lengths = generator.integers(3, 12, ROWS)
    behavior = [-1.5 - 3.0 * generator.random(n) for n in lengths]
    target = [row + generator.uniform(-0.4, 0.4, len(row)) for row in behavior]
    for row in range(0, ROWS, 5):
        if where in ("behavior", "both"):
            behavior[row][:] = value
        if where in ("target", "both"):
            target[row][1] = value
    columns = {
        "rollout_log_probs": [row.tolist() for row in behavior],
        "old_log_probs": [row.tolist() for row in target],
    }
    ids = ids_like(columns["old_log_probs"])
    return write_table(path, response_ids=ids, advantage=[1.0] * ROWS, **columns), behavior, target


def ess(behavior: list[np.ndarray], target: list[np.ndarray]) -> float:
    log_ratio = np.concatenate(target) - np.concatenate(behavior)
    ratio = np.exp(log_ratio - log_ratio.max())
    return ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())


@pytest.mark.parametrize("where", ["behavior", "target", "both"])
@pytest.mark.parametrize("value", HUGE)
def test_rows_with_practically_infinite_log_probs_are_left_out(tmp_path, value, where):
    path, behavior, target = table_of(tmp_path / "a.parquet", value, where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = rcdiag.score(path)
    others = [row for row in range(ROWS) if row % 5]
    expected = ess([behavior[row] for row in others], [target[row] for row in others])
    assert result.mismatch["ess_token"].value == pytest.approx(expected, rel=1e-9)
    assert result.rows_left_out == ROWS // 5
    assert "non-finite-log-probs" in {finding.slug for finding in result.findings}


@pytest.mark.parametrize("where", ["behavior", "target", "both"])
@pytest.mark.parametrize("value", LARGE)
def test_smaller_log_probs_are_used(tmp_path, value, where):
    path, behavior, target = table_of(tmp_path / "a.parquet", value, where)
    result = rcdiag.score(path)
    assert result.rows_left_out == 0
    assert result.mismatch["ess_token"].value == pytest.approx(ess(behavior, target), rel=1e-9)


@pytest.mark.parametrize(
    ("command", "options"),
    [("sweep", {"thresholds": 4}), ("compare", {}), ("replay", {}), ("diagnose", {})],
)
@pytest.mark.parametrize(
    ("value", "where"),
    [
        *((-1e3, "behavior"), (-1e9, "target"), (-1e12, "behavior"), (-1e16, "both")),
        *((-1e38, "target"), (-1e154, "both"), (-1e300, "behavior"), (-1e308, "both")),
    ],
)
def test_no_command_ends_in_a_traceback_or_a_warning(tmp_path, command, options, value, where):
    path, *_ = table_of(tmp_path / "a.parquet", value, where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(rcdiag, command)(path, **options)
