"""`--csv FILE` writes one tidy row for each metric and step, for every command."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rcdiag import load_result
from tests.cli.conftest import dump_with_shift

COLUMNS = ["kind", "step", "policies", "name", "metric", "value", "low", "high", "level"]
OPTIONS = {"sweep": ("--thresholds", 2), "score": ("--preset", "disabled")}


@pytest.fixture
def table(tmp_path) -> Path:
    columns = {"advantage": [1.0, -2.0, 4.0], "step": [4, 6, 6]}
    return dump_with_shift(tmp_path / "a.parquet", 0.1, **columns)


@pytest.mark.parametrize("command", ["score", "compare", "sweep", "replay"])
def test_every_command_writes_its_numbers(rcdiag, table, tmp_path, command):
    target, document = tmp_path / "numbers.csv", tmp_path / "r.json"
    options = OPTIONS.get(command, ())
    ran = rcdiag(command, table, *options, "--csv", target, "--result", document)
    assert ran.code == 0, ran.err
    assert f"Wrote {target}" in ran.err
    with target.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == COLUMNS
    assert {row["kind"] for row in rows} == {command}
    assert len(rows) == load_result(document).frame().height
    again = rcdiag(command, table, *options, "--csv", target)
    assert (again.code, "already there" in again.err) == (2, True)


def test_steps_stand_beside_the_whole_table(rcdiag, table, tmp_path):
    assert rcdiag("score", table, "--csv", tmp_path / "a.csv").code == 0
    with (tmp_path / "a.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] == "k3_kl"]
    assert [row["step"] for row in rows] == ["", "4", "6"]
    assert {row["policies"] for row in rows} == {"rollout->old"}
    assert all(float(row["value"]) > 0 for row in rows)
