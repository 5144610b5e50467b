"""Writing tables: round trips, encodings, provenance, and no partial files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.writer import TableWriter
from tests.builders import arrow_table

TABLE = arrow_table(
    response_ids=[[1, 2], [], [3]],
    response_mask=pa.array([[True, False], [], [True]]),
    old_log_probs=pa.array([[-1.0, float("nan")], [], [-0.5]], pa.list_(pa.float32())),
    sample_id=["a", "b", "c"],
    note=pa.array([{"tool": "bash"}, None, {"tool": "ls"}]),
)


def write(path: Path, *tables: pa.Table, metadata: dict | None = None) -> Path:
    with TableWriter(path, tables[0].schema, metadata or {}) as writer:
        for table in tables:
            writer.write(table)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_table_is_read_back(tmp_path):
    path = write(tmp_path / "a.parquet", TABLE, TABLE.slice(1, 2))
    expected = pa.concat_tables([TABLE, TABLE.slice(1, 2)])
    assert pq.read_table(path).to_pylist()[4] == expected.to_pylist()[4]
    assert repr(pq.read_table(path).to_pylist()) == repr(expected.to_pylist())  # NaN != NaN
    assert open_table(path).num_rows == 5
    assert names_in(tmp_path) == ["a.parquet"]


ODD = {
    "map": pa.array([[("k", 1.0)]], pa.map_(pa.string(), pa.float64())),
    "lists of lists": pa.array([[[1.0], []]]),
    "dictionary": pa.array(["x"]).dictionary_encode(),
    "half floats": pa.array([[1.0]]).cast(pa.list_(pa.float16())),
    "nulls": pa.nulls(1),
    "binary": pa.array([b"\x00"]),
    "a.dotted.name": pa.array([[1.0]]),
    "lists of structs": pa.array([[{"z": 1.0}]]),
    "large list": pa.array([[1.0]], pa.large_list(pa.float32())),
    "fixed list": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
    "scalar": pa.array([1.5]),
}


@pytest.mark.parametrize("name", ODD)
def test_extra_columns_of_any_type_pass_through(tmp_path, name):
    table = pa.table({"response_ids": pa.array([[1]]), name: ODD[name]})
    assert pq.read_table(write(tmp_path / "a.parquet", table)).equals(table)


def test_float_lists_are_split_by_bytes_and_everything_is_zstd(tmp_path):
    group = pq.ParquetFile(write(tmp_path / "a.parquet", TABLE)).metadata.row_group(0)
    columns = {
        group.column(index).path_in_schema.split(".")[0]: group.column(index)
        for index in range(group.num_columns)
    }
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["old_log_probs"].encodings
    assert "BYTE_STREAM_SPLIT" in columns["response_ids"].encodings
    assert "RLE_DICTIONARY" in columns["sample_id"].encodings


def test_rows_are_gathered_into_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.table.writer.VALUES_PER_ROW_GROUP", 6)
    path = write(tmp_path / "a.parquet", *[TABLE] * 5)
    assert pq.ParquetFile(path).metadata.num_row_groups == 3
    assert pq.ParquetFile(path).metadata.num_rows == 15


def test_provenance_is_json_beside_existing_metadata(tmp_path):
    table = TABLE.replace_schema_metadata({b"mine": b"kept"})
    write(tmp_path / "a.parquet", table, metadata={"policies": {"old": {"dtype": "float32"}}})
    metadata = pq.read_schema(tmp_path / "a.parquet").metadata
    assert metadata[b"mine"] == b"kept"
    expected = {"format_version": 1, "policies": {"old": {"dtype": "float32"}}}
    assert json.loads(metadata[b"rcdiag"]) == expected
    assert open_table(tmp_path / "a.parquet").metadata == expected


def test_the_file_appears_only_when_complete(tmp_path):
    path = tmp_path / "a.parquet"
    with TableWriter(path, TABLE.schema, {}) as writer:
        writer.write(TABLE)
        assert not path.exists()
    assert path.exists()


def fail_while_writing(path: Path, failure: type[BaseException]) -> None:
    with TableWriter(path, TABLE.schema, {}) as writer:
        writer.write(TABLE.slice(0, 1))
        raise failure


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_no_file_and_no_temporary_name(tmp_path, failure):
    with pytest.raises(failure):
        fail_while_writing(tmp_path / "a.parquet", failure)
    assert names_in(tmp_path) == []


def test_a_failure_leaves_an_existing_file_untouched(tmp_path):
    path = write(tmp_path / "a.parquet", TABLE)
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        fail_while_writing(path, RuntimeError)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.parquet"]


def test_missing_folders_are_created(tmp_path):
    assert write(tmp_path / "new" / "deep" / "a.parquet", TABLE).exists()


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RcdiagError, match="cannot be written") as caught:
        write(tmp_path / "file" / "a.parquet", TABLE)
    assert caught.value.hint


def test_a_folder_at_the_path_is_refused_and_unchanged(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(RcdiagError, match="cannot be written"):
        write(tmp_path / "a.parquet", TABLE)
    assert names_in(tmp_path) == ["a.parquet"]
