"""`score --logged` on logs by verl's own code on the sample table, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import rcdiag
from rcdiag.trainers import find_trainer
from tests.corrections.builders import Padded
from tests.logs.verl_run import PREFIX, ROLLOUTS, Numbers, Row, rows_of_table, write_log
from tests.oracle.verl import ask

pytestmark = pytest.mark.oracle
STEPS = (0, 1, 2)


def padded(rows: Sequence[Row]) -> Padded:
    """Return padded float32 rows as in verl."""
    lengths = [len(old) for _, old in rows]
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    rollout, old = (np.zeros(mask.shape, np.float32) for _ in range(2))
    rollout[mask] = np.concatenate([row[0] for row in rows])
    old[mask] = np.concatenate([row[1] for row in rows])
    return Padded(old, rollout, mask)


def logged_by(trainer: str, preset: str, rows: Sequence[Row], size: int) -> Numbers:
    """Return verl's logged metrics, averaged over micro-batches of `size` rows."""
    known = find_trainer(trainer)
    config = {**known.settings, **known.presets[preset]}
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    metrics = [ask(trainer, config, padded(part), "float32").metrics for part in parts]
    return {key.removeprefix(PREFIX): fmean(part[key] for part in metrics) for key in metrics[0]}


@pytest.mark.parametrize(
    ("trainer", "preset", "size", "reasons"),
    [
        ("verl-0.9", "decoupled_token_is", 256, {"float32"}),
        ("verl-0.9", "decoupled_k3_rs_seq_tis", 32, {"float32", "micro-batches of 32"}),
        ("verl-0.7.1", "decoupled_seq_is_rs", 256, {"float32", "verl-0.7.1"}),
    ],
)
def test_every_number_agrees_or_is_explained(tmp_path: Path, trainer, preset, size, reasons):
    rows = rows_of_table(steps=STEPS)
    steps = {step: logged_by(trainer, preset, rows[step], size) for step in STEPS}
    log = write_log(tmp_path / "metrics.jsonl", steps)
    found = rcdiag.score(ROLLOUTS, presets=[preset], logged=log).logged
    assert found is not None
    assert len(found.keys) == sum(map(len, steps.values()))
    assert found.unexplained == []
    assert {one.explained_by for one in found.keys if not one.agrees} == reasons
