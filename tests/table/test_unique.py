"""Duplicate samples are refused if rows are matched by id."""

from __future__ import annotations

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import hashed, read_trajectories
from rcdiag.table.survey import check_unique
from tests.builders import write_table


def read(source) -> None:
    table = open_table(source)
    check_unique(table, [hashed(batch, "sample_id") for batch in table.batches(["sample_id"])])


def test_statistics_accept_duplicate_ids(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]] * 2, sample_id=["a", "a"])
    (rows,) = read_trajectories(open_table(path), ())
    assert rows.sample_id == ["a", "a"]


@pytest.mark.parametrize("ids", [["a", "b", "c"], [3, 1, 2]])
def test_different_ids_pass(tmp_path, ids):
    read(write_table(tmp_path / "a.parquet", response_ids=[[1]] * 3, sample_id=ids))


@pytest.mark.parametrize("ids", [["a", "b", "a"], [7, 1, 7]])
def test_a_repeated_id_names_both_rows(tmp_path, ids):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]] * 3, sample_id=ids)
    with pytest.raises(RcdiagError) as caught:
        read(path)
    assert f"{path}, row 2" in caught.value.message
    assert f"{path}, row 0" in caught.value.message
    assert "`sample_id`" in caught.value.message
    assert caught.value.hint


def test_an_id_repeated_in_another_file_names_both_files(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / f"{name}.parquet", response_ids=[[1]], sample_id=["same"])
    with pytest.raises(RcdiagError) as caught:
        read(tmp_path)
    assert "a.parquet, row 0" in caught.value.message
    assert "b.parquet, row 0" in caught.value.message


def test_the_number_of_repeated_rows_is_stated(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]] * 5, sample_id=list("aabab"))
    with pytest.raises(RcdiagError, match="3 repeated"):
        read(path)


def test_the_first_two_of_many_repeated_rows_are_named(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]] * 500, sample_id=[4] * 500)
    with pytest.raises(RcdiagError, match=r"row 1: column `sample_id` .* row 0 \(499 repeated"):
        read(path)


def test_null_ids_are_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]] * 2, sample_id=["a", None])
    with pytest.raises(RcdiagError, match=r"row 1: column `sample_id`"):
        read(path)
    with pytest.raises(RcdiagError, match=r"row 1: column `sample_id`"):
        list(read_trajectories(open_table(path), ()))
