"""Reading in ranges of rows, and as checked trajectories."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import read_chunks, read_trajectories
from rcdiag.table.table import RowRange, Table
from tests.builders import write_table

ROWS = 23


@pytest.fixture(scope="module")
def dump(tmp_path_factory) -> Table:
    """Write 23 rows in three files with row groups of three rows; row i has i tokens."""
    folder = tmp_path_factory.mktemp("dump")
    for name, start, stop in (("a", 0, 10), ("b", 10, 11), ("c", 11, ROWS)):
        rows = range(start, stop)
        write_table(
            folder / f"{name}.parquet",
            rows_per_group=3,
            response_ids=[list(range(row)) for row in rows],
            old_log_probs=[[-float(row)] * row for row in rows],
            step=list(rows),
        )
    return open_table(folder)


def rows_of(dump: Table, ranges: list[RowRange]) -> list[list[int]]:
    chunks = read_chunks(dump, ranges, ["response_ids", "step"])
    return [chunk.table.column("step").to_pylist() for chunk in chunks]


@given(st.sets(st.integers(1, ROWS - 1)), st.integers(1, 60))
def test_any_partition_reads_all_rows(dump, cuts, tokens_per_batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", tokens_per_batch)
        bounds = [0, *sorted(cuts), ROWS]
        ranges = list(itertools.pairwise(bounds))
        assert rows_of(dump, ranges) == [list(range(*item)) for item in ranges]


@given(st.sets(st.integers(0, ROWS), min_size=2))
def test_rows_between_the_ranges_are_left_out(dump, bounds):
    ordered = sorted(bounds)
    ranges = list(zip(ordered[::2], ordered[1::2], strict=False))
    assert rows_of(dump, ranges) == [list(range(*item)) for item in ranges]


def test_no_range_reads_nothing(dump):
    assert rows_of(dump, []) == []


def test_a_range_over_several_files_is_one_batch_that_knows_file_and_row(dump):
    (chunk,) = read_chunks(dump, [(9, 12)])
    places = ["a.parquet, row 9", "b.parquet, row 0", "c.parquet, row 0"]
    assert [chunk.where(row).rpartition("/")[2] for row in range(3)] == places
    assert (chunk.first_row, chunk.table.num_rows) == (9, 3)
    assert chunk.table.column("step").num_chunks == 1


def test_a_range_that_starts_with_a_file_excludes_the_previous_file(dump):
    _, chunk = read_chunks(dump, [(0, 10), (10, 12)])
    assert chunk.numbers.tolist() == [10, 11]
    assert chunk.table.num_rows == 2


def test_trajectories_are_all_rows_with_the_wanted_policies(dump):
    batches = list(read_trajectories(dump, ["old"]))
    assert [batch.first_row for batch in batches] == [0, 10, 11]
    assert [step for batch in batches for step in batch.step] == list(range(ROWS))
    assert sum(batch.log_probs["old"].sum() for batch in batches) == -sum(
        row * row for row in range(ROWS)
    )


def test_a_missing_policy_is_refused_before_any_row_is_read(dump):
    with pytest.raises(RcdiagError, match="current_log_probs"):
        next(read_trajectories(dump, ["current"]))


def test_columns_that_are_not_requested_are_not_read(tmp_path):
    """Invalid values of a third policy do not affect the two that are compared."""
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1]],
        old_log_probs=[[-1.0]],
        other_log_probs=[[5.0, 5.0]],
        prompt_ids=[[-1]],
    )
    (rows,) = read_trajectories(open_table(path), ["old"])
    assert list(rows.log_probs) == ["old"]
