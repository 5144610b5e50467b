"""Joining tables: equal samples with equal tokens; all other rows are counted and named."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.table.joining import IDS, LOG_PROBS, TOKENS, joined, log_probs, rows, table
from tests.usecases.compare.tables import write_policies


def test_samples_in_another_order_are_joined_by_id(tmp_path):
    one = table(tmp_path / "a.parquet")
    other = table(tmp_path / "b.parquet", "old", [2, 0, 3, 1])
    dump, report = joined(tmp_path, one, other)
    assert [row["sample_id"] for row in rows(dump)] == IDS
    assert log_probs(dump, "rollout") == log_probs(dump, "old") == LOG_PROBS
    assert (report.common_samples, report.tokens_differ, report.left_out) == (4, 0, [])
    assert report.missing_rows == {"a": 0, "b": 0}
    assert report.tables == [str(one), str(other)]
    assert report.table_rows == [4, 4]


def test_rows_missing_on_either_side_are_counted_and_named(tmp_path):
    one = table(tmp_path / "a.parquet", order=[0, 1, 2])
    other = table(tmp_path / "b.parquet", "old", [3, 1])
    dump, report = joined(tmp_path, one, other)
    assert [row["sample_id"] for row in rows(dump)] == ["s1"]
    assert report.missing_rows == {"a": 1, "b": 2}
    assert sorted(report.left_out) == ["s0 (not in b)", "s2 (not in b)", "s3 (not in a)"]
    assert (report.common_samples, report.table_rows) == (1, [3, 2])


def test_rows_with_other_tokens_are_left_out_and_named(tmp_path):
    one = table(tmp_path / "a.parquet")
    longer = [[1, 2], [9], [4, 5], [7]]
    lists = [LOG_PROBS[0], LOG_PROBS[1], [-4.0, -5.0], LOG_PROBS[3]]
    other = write_policies(
        tmp_path / "b.parquet", {"old": lists}, response_ids=longer, sample_id=IDS
    )
    dump, report = joined(tmp_path, one, other)
    assert [row["sample_id"] for row in rows(dump)] == ["s0", "s3"]
    assert (report.common_samples, report.tokens_differ) == (2, 2)
    assert report.left_out == ["s1 (other tokens)", "s2 (other tokens)"]
    assert report.missing_rows == {"a": 0, "b": 0}


def test_the_first_ten_of_many_rows_left_out_are_named(tmp_path):
    ids = list(range(40))
    for name, first in (("a", 0), ("b", 20)):
        write_policies(
            tmp_path / f"{name}.parquet",
            {name: [[-1.0]] * 40},
            response_ids=[[1]] * 40,
            sample_id=[first + item for item in ids],
        )
    report = joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")[1]
    assert (report.common_samples, report.missing_rows, len(report.left_out)) == (
        20,
        {"a": 20, "b": 20},
        10,
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([3, 1, 2, 0], pa.int64()), pa.array([3, 1, 2, 0], pa.int32())),
        (pa.array(IDS, pa.string()), pa.array(IDS, pa.large_string())),
        (pa.array(IDS, pa.string()), pa.array(IDS).dictionary_encode()),
        (pa.array(IDS).dictionary_encode(), pa.array(reversed(IDS)).dictionary_encode()),
    ],
)
def test_ids_of_similar_types_are_joined(tmp_path, one, other):
    for name, ids in (("a", one), ("b", other)):
        order = [["s0", "s1", "s2", "s3", 3, 1, 2, 0].index(item.as_py()) % 4 for item in ids]
        write_policies(
            tmp_path / f"{name}.parquet",
            {name: [LOG_PROBS[row] for row in order]},
            response_ids=[TOKENS[row] for row in order],
            sample_id=ids,
        )
    dump, report = joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (report.common_samples, report.missing_rows) == (4, {"a": 0, "b": 0})
    assert log_probs(dump, "a") == log_probs(dump, "b")


def test_without_ids_rows_are_joined_by_number(tmp_path):
    one = table(tmp_path / "a.parquet", ids=None)
    other = table(tmp_path / "b.parquet", "old", [0, 2, 1], ids=None)
    dump, report = joined(tmp_path, one, other)
    assert log_probs(dump, "rollout") == log_probs(dump, "old") == [LOG_PROBS[0]]
    assert (report.common_samples, report.tokens_differ, report.missing_rows) == (
        1,
        2,
        {"a": 0, "b": 1},
    )
    assert report.left_out == ["1 (other tokens)", "2 (other tokens)", "3 (not in b)"]
    assert "sample_id" not in dump.schema.names
