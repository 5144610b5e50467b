"""Unreadable files and schemas: the error names the file and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.opening import open_table
from rcdiag.table.stream import read_trajectories
from tests.builders import arrow_table, write_table


def refused(source: Path | str) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        open_table(source)
    assert str(source) in caught.value.message
    assert caught.value.hint
    return caught.value


def good_bytes(folder: Path) -> bytes:
    rows = [list(range(200))] * 50
    return write_table(folder / "good.parquet", response_ids=rows).read_bytes()


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (lambda good: b"", "empty"),
        (lambda good: b'{"response_ids": [1, 2]}\n', "not a parquet file"),
        (lambda good: b"PA", "not a parquet file"),
        (lambda good: good[: len(good) // 2], "truncated"),
        (lambda good: good[:-1], "truncated"),
        (lambda good: good[:6], "truncated"),
        (lambda good: good[:-8] + b"\xff\xff\xff\x7fPAR1", "truncated"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content: Callable[[bytes], bytes], output):
    path = tmp_path / "bad.parquet"
    path.write_bytes(content(good_bytes(tmp_path)))
    assert output in refused(path).message


@pytest.mark.parametrize("form", ["in memory", "nested", "padded", "drawn"])
def test_unreadable_metadata_are_refused_wherever_rows_are_written_anew(tmp_path, form):
    columns = {"response_ids": [[1, 2], [3, 4], [5, 6]], "rollout_log_probs": [[-1.0, -2.0]] * 3}
    if form == "padded":
        columns |= {"prompt_ids": [[0, 7]] * 3, "attention_mask": [[0, 1, 1, 1]] * 3}
    table = pa.table({"of": pa.table(columns).to_pylist()} if form == "nested" else columns)
    table = table.replace_schema_metadata({b"rcdiag": b"no JSON"})
    pq.write_table(table, tmp_path / "bad.parquet")
    source = table if form == "in memory" else tmp_path / "bad.parquet"
    with pytest.raises(RcdiagError, match="the file metadata `rcdiag` cannot be read"):
        draw_rows(rcdiag.open_table(source), 2, seed=0)


def test_a_file_damaged_in_its_middle_is_refused_while_it_is_read(tmp_path):
    rows = [[(7919 * (index + row)) % 100_003 for index in range(200)] for row in range(50)]
    path = tmp_path / "bad.parquet"
    pq.write_table(arrow_table(response_ids=rows), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[10:300] = b"\xee" * 290
    path.write_bytes(bytes(content))
    with pytest.raises(RcdiagError) as caught:
        list(read_trajectories(open_table(path), ()))
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["none.parquet", "none*.parquet", "no/such/folder"])
def test_missing_files_are_refused(tmp_path, name):
    assert "no such file" in refused(tmp_path / name).message


def test_a_directory_without_tables_is_refused(tmp_path):
    assert "rcdiag knows the format of none" in refused(tmp_path).message


def test_one_bad_file_of_several_is_named(tmp_path):
    write_table(tmp_path / "a.parquet", response_ids=[[1]])
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(RcdiagError, match=r"b\.parquet"):
        open_table(tmp_path)


def test_a_table_without_rows_is_refused(tmp_path):
    assert "zero rows" in refused(write_table(tmp_path / "a.parquet", response_ids=[])).message


def test_damaged_rcdiag_metadata_are_refused(tmp_path):
    table = pa.table({"response_ids": [[1]]}).replace_schema_metadata({b"rcdiag": b"{no json"})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(RcdiagError, match=r"a\.parquet"):
        _ = open_table(tmp_path / "a.parquet").metadata
