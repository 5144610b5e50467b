"""Rows whose log-probs are null were not recorded: metrics use the other rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.results import Finding
from rcdiag.table.readers import parquet
from tests.builders import ids_like, write_table
from tests.cli.conftest import rcdiag as command_line
from tests.usecases.test_rows_left_out import draws

__all__ = ["command_line"]

NULL = (0, 7, 19)  # rows of twenty without `old_log_probs`
COMMANDS = {
    "score": rcdiag.score,
    "compare": rcdiag.compare,
    "sweep": lambda table: rcdiag.sweep(table, thresholds=4),
    "replay": rcdiag.replay,
}


def table_of(path: Path, null: tuple[int, ...] = NULL, *, without: bool = False) -> Path:
    """Write twenty rows, some with null `old_log_probs`; `without` leaves those rows out."""
    behavior, target = draws(20)
    columns: dict[str, list[Any]] = {
        "response_ids": ids_like(behavior),
        "rollout_log_probs": behavior,
        "old_log_probs": [None if row in null else values for row, values in enumerate(target)],
        "group_id": [row // 2 for row in range(20)],
        "advantage": np.random.default_rng(1).standard_normal(20).tolist(),
        "sample_id": [f"sample {row}" for row in range(20)],
    }
    rows = [row for row in range(20) if not (without and row in null)]
    kept = {name: [values[row] for row in rows] for name, values in columns.items()}
    return write_table(path, rows_per_group=6, **kept)


def finding_of(result: Any) -> Finding:
    (finding,) = [one for one in result.findings if one.slug == "rows-not-observable"]
    return finding


@pytest.mark.parametrize("command", COMMANDS)
def test_numbers_are_those_of_a_table_without_these_rows(tmp_path, command):
    result = COMMANDS[command](table_of(tmp_path / "null.parquet"))
    whole = COMMANDS[command](table_of(tmp_path / "without.parquet", without=True))
    numbers, expected = (json.loads(one.to_json()) for one in (result, whole))
    for name in ("mismatch", "corrections", "pairs", "families", "forecast", "presets", "factors"):
        assert numbers.get(name) == expected.get(name), name
    assert result.num_sequences == whole.num_sequences == 17
    assert getattr(result, "empty_sequences", 0) == 0
    assert result.diagnosis.causes == whole.diagnosis.causes
    finding = finding_of(result)
    assert finding.message.startswith("3 rows left out: 3 without `old_log_probs` (first: ")
    assert finding.evidence == {"rows": 3, "first_rows": {"old": [0, 7, 19]}}


def test_the_screen_counts_them_and_names_the_first(tmp_path, command_line):
    path = table_of(tmp_path / "null.parquet")
    ran = command_line("score", path, "-v")
    assert ran.code == 0, ran.err
    # A long path is cut at the end of the line.
    text = "".join(ran.out.split())
    assert "".join(f"3 without `old_log_probs` (first: {path}, row 0)".split()) in text


def test_rows_that_are_named_are_those_of_the_table(tmp_path):
    result = rcdiag.score(table_of(tmp_path / "null.parquet", (0, 1, 2, 3)))
    places = {token["row"] for token in result.worst_tokens}
    assert places
    assert places.isdisjoint({0, 1, 2, 3})
    again = rcdiag.score(table_of(tmp_path / "w.parquet", (0, 1, 2, 3), without=True))
    assert places == {token["row"] + 4 for token in again.worst_tokens}


def test_a_column_that_is_null_in_every_row_is_absent(tmp_path):
    path = table_of(tmp_path / "null.parquet", tuple(range(20)))
    table = rcdiag.open_table(path)
    assert table.policies == ["rollout"]
    result = rcdiag.score(table)
    assert result.target == ""
    with pytest.raises(RcdiagError, match="`old_log_probs` is null in all 20 rows"):
        rcdiag.score(path, target="old")
    with pytest.raises(RcdiagError, match="one policy, `rollout`"):
        rcdiag.sweep(path)


def test_a_column_without_a_type_is_absent_too(tmp_path):
    rows = pq.read_table(table_of(tmp_path / "a.parquet"))
    place = rows.column_names.index("old_log_probs")
    pq.write_table(rows.set_column(place, "old_log_probs", pa.nulls(20)), tmp_path / "b.parquet")
    assert rcdiag.open_table(tmp_path / "b.parquet").policies == ["rollout"]


def test_policies_on_disjoint_rows_have_no_common_rows(tmp_path):
    behavior, target = draws(4)
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=ids_like(behavior),
        rollout_log_probs=[*behavior[:2], None, None],
        old_log_probs=[None, None, *target[2:]],
        advantage=[0.5] * 4,
    )
    for command in COMMANDS.values():
        with pytest.raises(RcdiagError, match="no row") as caught:
            command(path)
        assert "2 lack `rollout_log_probs`, 2 lack `old_log_probs`" in caught.value.message


def test_a_third_policy_on_few_rows_does_not_reduce_the_rows_of_the_pair(tmp_path):
    path = table_of(tmp_path / "a.parquet", ())
    rows = pq.read_table(path)
    third = [
        values if row < 3 else None for row, values in enumerate(rows["old_log_probs"].to_pylist())
    ]
    pq.write_table(rows.append_column("ref_log_probs", pa.array(third)), tmp_path / "b.parquet")
    one, other = rcdiag.score(path), rcdiag.score(tmp_path / "b.parquet")
    assert one.mismatch == other.mismatch
    assert one.diagnosis.causes == other.diagnosis.causes
    assert rcdiag.compare(tmp_path / "b.parquet").num_sequences == 3


def test_rows_without_statistics_in_the_footer_are_found(tmp_path):
    rows = pq.read_table(table_of(tmp_path / "a.parquet"))
    pq.write_table(rows, tmp_path / "b.parquet", write_statistics=False)
    assert finding_of(rcdiag.score(tmp_path / "b.parquet")).evidence["rows"] == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_null_rows_are_looked_for_once(tmp_path, command, monkeypatch):
    path = table_of(tmp_path / "a.parquet", tuple(range(18)))
    pieces: list[tuple[tuple[str, ...], int]] = []
    read_whole = parquet.read_whole

    def counted(file, columns, group):
        pieces.append((tuple(columns), group))
        return read_whole(file, columns, group)

    monkeypatch.setattr("rcdiag.table.table.read_whole", counted)
    COMMANDS[command](path)
    # By the footer the fourth row group has no null.
    assert sorted(pieces) == [(("old_log_probs",), group) for group in range(3)]
