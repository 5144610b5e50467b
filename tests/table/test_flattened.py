"""Parquet files and tables in memory with tokens in struct fields are read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError

ROWS: list[dict[str, Any]] = [
    {
        "prompt": {"text": "a", "token_ids": [1, place // 2]},
        "response": {"token_ids": [5, 6, place], "logprobs": [-0.5, -1.5, -0.25]},
        "trainer": {"old": {"logprobs": [-0.5, -1.0, -0.25]}},
        "meta": {"step": 3, "uid": f"g{place // 2}"},
        "reward": 1.0,
    }
    for place in range(4)
]
COLUMNS = {"rollout_log_probs": "response.logprobs", "old_log_probs": "trainer.old.logprobs"}


def read(source: Any, **columns: str) -> list[dict[str, Any]]:
    table = rcdiag.open_table(source, columns={**COLUMNS, **columns})
    return [row for batch in table.batches() for row in batch.table.to_pylist()]


@pytest.mark.parametrize("form", ["file", "folder", "memory"])
def test_fields_of_structs_are_columns(form, tmp_path):
    table = pa.Table.from_pylist(ROWS)
    for number in (1, 2):
        pq.write_table(table.slice(2 * number - 2, 2), tmp_path / f"{number}.parquet")
    pq.write_table(table, tmp_path.with_suffix(".parquet"))
    sources = {"file": tmp_path.with_suffix(".parquet"), "folder": tmp_path, "memory": table}
    rows = read(sources[form])
    assert [row["response_ids"] for row in rows] == [[5, 6, place] for place in range(4)]
    for place, row in enumerate(rows):
        assert row["rollout_log_probs"] == [-0.5, -1.5, -0.25]
        assert row["old_log_probs"] == [-0.5, -1.0, -0.25]
        assert row["prompt_ids"] == [1, place // 2]
        assert (row["step"], row["group_id"], row["reward"]) == (3, f"g{place // 2}", 1.0)
        assert row["prompt.text"] == "a"


def test_other_structs_are_unchanged(tmp_path):
    rows = [{**row["response"], "tool": {"name": "sh"}} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    table = rcdiag.open_table(tmp_path / "t.parquet", columns={"response_ids": "token_ids"})
    assert "tool" in table.columns


def test_a_path_that_is_also_a_column_is_refused(tmp_path):
    rows = [{**row, "response.token_ids": [1, 2, 3]} for row in ROWS]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(RcdiagError, match="is both a column and a field of a struct"):
        read(path)


def test_a_path_to_a_missing_field_lists_the_existing_ones(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    with pytest.raises(RcdiagError, match=r"no column `response\.ids`, the right side .*found: .*"):
        read(tmp_path / "t.parquet", response_ids="response.ids")


@pytest.mark.parametrize("source", ["parquet", "memory"])
def test_fields_of_lists_of_structs_are_lists(source, tmp_path):
    """One object per token, as in responses of servers."""
    lists = [[(5, -0.5), (6, -1.5)], [], [(7, -0.25)]]
    rows = [
        {"output": {"tokens": [{"id": i, "r": r, "old": r / 2} for i, r in tokens]}, "uid": "a"}
        for tokens in lists
    ]
    held: Any = rows
    if source == "parquet":
        held = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(rows), held)
    names = {"response_ids": "id", "rollout_log_probs": "r", "old_log_probs": "old"}
    table = rcdiag.open_table(held, columns={n: f"output.tokens.{f}" for n, f in names.items()})
    made = [row for batch in table.batches() for row in batch.table.to_pylist()]
    assert [row["response_ids"] for row in made] == [[i for i, _ in row] for row in lists]
    assert [row["rollout_log_probs"] for row in made] == [[r for _, r in row] for row in lists]
    assert [row["old_log_probs"] for row in made] == [[r / 2 for _, r in row] for row in lists]
    assert [row["group_id"] for row in made] == ["a"] * 3


def test_a_file_with_structs_is_scored(tmp_path):
    """The columns that were read are reported to a listener."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert rcdiag.score(path, columns=COLUMNS).num_tokens == 12


def test_chat_messages_are_not_lists_of_tokens(tmp_path):
    path = tmp_path / "t.parquet"
    rows = [{"messages": [{"role": "user", "content": "2 + 3 ="}], "score": 1.0}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(RcdiagError, match="found: messages, score"):
        rcdiag.open_table(path)
