"""Opening tables: which files, which columns, in batches."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.sources import SourceFile
from rcdiag.table.table import TableFile
from tests.builders import arrow_table, write_table

IDS = [[1, 2], [3], []]


def read_ids(dump, name: str = "response_ids") -> list:
    return [row for batch in dump.batches([name]) for row in batch.table.column(name).to_pylist()]


def test_one_file_is_a_table(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=IDS)
    dump = open_table(path)
    assert dump.files == (TableFile(SourceFile(path), 3, 0),)
    assert dump.num_rows == 3
    assert read_ids(dump) == IDS


def test_a_glob_of_all_folders_below_leaves_the_folders_out(tmp_path):
    (tmp_path / "dump" / "deep").mkdir(parents=True)
    write_table(tmp_path / "dump" / "deep" / "a.parquet", response_ids=[[1]])
    assert open_table(tmp_path / "dump" / "**").num_rows == 1


@pytest.mark.parametrize("source", ["", "*.parquet", "[ab].parquet", "**/*.parquet"])
def test_a_directory_and_a_glob_are_one_table_in_order_of_names(tmp_path, source):
    write_table(tmp_path / "b.parquet", response_ids=[[9]])
    write_table(tmp_path / "a.parquet", response_ids=IDS)
    (tmp_path / "notes.txt").write_text("not a dump")
    dump = open_table(f"{tmp_path}/{source}")
    assert [(file.source.path.name, file.first_row) for file in dump.files] == [
        ("a.parquet", 0),
        ("b.parquet", 3),
    ]
    assert read_ids(dump) == [*IDS, [9]]


def test_row_groups_are_read_in_order_with_row_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 3)
    rows = [[index] * (index % 3) for index in range(25)]
    write_table(tmp_path / "a.parquet", rows_per_group=4, response_ids=rows)
    write_table(tmp_path / "b.parquet", rows_per_group=7, response_ids=rows[:8])
    dump = open_table(tmp_path)
    batches = list(dump.batches())
    assert max(batch.table.num_rows for batch in batches) < 8
    ends = [batch.first_row + batch.table.num_rows for batch in batches]
    assert [batch.first_row for batch in batches] == [0, *ends[:-1]]
    assert read_ids(dump) == rows + rows[:8]
    last = batches[-1]
    assert last.where(0) == f"{tmp_path / 'b.parquet'}, row {last.first_row - len(rows)}"


def test_the_order_of_columns_may_differ_between_files(tmp_path):
    write_table(tmp_path / "a.parquet", response_ids=[[1]], step=[5])
    write_table(tmp_path / "b.parquet", step=[6], response_ids=[[2]])
    dump = open_table(tmp_path)
    assert read_ids(dump) == [[1], [2]]
    assert read_ids(dump, "step") == [5, 6]
    assert [batch.table.column_names for batch in dump.batches()] == [["response_ids", "step"]] * 2


def test_names_of_list_elements_may_differ_between_files(tmp_path):
    element = pa.list_(pa.field("element", pa.int32()))
    write_table(tmp_path / "a.parquet", response_ids=pa.array([[1]], element))
    write_table(tmp_path / "b.parquet", response_ids=[[2]])
    assert read_ids(open_table(tmp_path)) == [[1], [2]]


def test_extra_columns_are_kept_unchanged(tmp_path):
    extra = pa.array([{"tool": "bash", "turns": [1, 2]}, None, None])
    dump = open_table(write_table(tmp_path / "a.parquet", response_ids=IDS, note=extra))
    assert read_ids(dump, "note") == extra.to_pylist()


def test_mapped_columns_have_canonical_names_and_can_be_read_alone(tmp_path):
    path = write_table(tmp_path / "a.parquet", ids=pa.array(IDS), lp=pa.array([[0.0]] * 3))
    dump = open_table(path, columns={"response_ids": "ids", "old_log_probs": "lp"})
    assert dump.policies == ["old"]
    assert read_ids(dump) == IDS
    assert next(dump.batches()).table.column_names == ["response_ids", "old_log_probs"]


def test_policies_are_those_with_log_probs(tmp_path):
    values = pa.array([[-1.0]])
    columns = {f"{name}_log_probs": values for name in ("rollout", "vllm_bf16", "hf-fp32")}
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]], old_entropy=values, **columns)
    assert open_table(path).policies == ["rollout", "vllm_bf16", "hf-fp32"]


def test_tables_written_by_polars_are_read(tmp_path):
    import polars as pl

    frame = pl.DataFrame({"response_ids": IDS, "sample_id": ["a", "b", "c"]})
    frame.write_parquet(tmp_path / "a.parquet")
    assert read_ids(open_table(tmp_path / "a.parquet")) == IDS


def test_the_fingerprint_depends_on_the_content(tmp_path):
    one = write_table(tmp_path / "a.parquet", response_ids=IDS)
    same = write_table(tmp_path / "b.parquet", response_ids=IDS)
    other = write_table(tmp_path / "c.parquet", response_ids=[[7]])
    assert open_table(one).fingerprint == open_table(same).fingerprint
    assert open_table(one).fingerprint != open_table(other).fingerprint


def test_a_file_without_rows_beside_one_with_rows_is_harmless(tmp_path):
    write_table(tmp_path / "a.parquet", response_ids=[])
    write_table(tmp_path / "b.parquet", response_ids=IDS)
    assert read_ids(open_table(tmp_path)) == IDS


def test_metadata_of_earlier_runs_is_read(tmp_path):
    table = arrow_table(response_ids=IDS)
    assert open_table(write_table(tmp_path / "a.parquet", response_ids=IDS)).metadata == {}
    metadata = {b"rcdiag": b'{"format_version": 1, "policies": {"old": {"dtype": "float32"}}}'}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "b.parquet")
    result = open_table(tmp_path / "b.parquet").metadata
    assert result["policies"]["old"]["dtype"] == "float32"


def test_a_directory_named_like_a_file_is_refused(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(RcdiagError):
        open_table(tmp_path / "*.parquet")
