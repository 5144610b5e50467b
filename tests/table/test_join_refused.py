"""Tables that cannot be joined give an error with a hint, never too many or too few rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from tests.table.joining import IDS, LOG_PROBS, TOKENS, joined, table
from tests.usecases.compare.tables import write_policies


def test_ids_of_different_kinds_are_refused_with_a_hint(tmp_path):
    one = table(tmp_path / "a.parquet")
    other = table(tmp_path / "b.parquet", "old", ids=[0, 1, 2, 3])
    with pytest.raises(RcdiagError, match="sample_id") as caught:
        joined(tmp_path, one, other)
    assert "b.parquet" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_ids_in_only_one_table_are_refused(tmp_path, lacking):
    one = table(tmp_path / "a.parquet", ids=None if lacking == "a" else IDS)
    other = table(tmp_path / "b.parquet", "old", ids=None if lacking == "b" else IDS)
    with pytest.raises(RcdiagError, match=rf"{lacking}\.parquet: no column `sample_id`") as caught:
        joined(tmp_path, one, other)
    assert "--column sample_id=" in caught.value.hint


@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("tokens", [[3], [9]])
def test_a_repeated_id_is_refused_naming_its_table(tmp_path, where, tokens):
    """Also if only one of the repeated rows matches the other table's tokens."""
    for name in ("a", "b"):
        again = [1] if name == where else []
        table(tmp_path / f"{name}.parquet", name, [0, 1, 2, 3, *again])
    twice = pq.read_table(tmp_path / f"{where}.parquet").to_pydict()
    twice["response_ids"][-1] = tokens
    columns = {
        "response_ids": twice["response_ids"],
        "sample_id": twice["sample_id"],
    }
    write_policies(tmp_path / f"{where}.parquet", {where: twice[f"{where}_log_probs"]}, **columns)
    with pytest.raises(RcdiagError) as caught:
        joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert f"{where}.parquet" in caught.value.message
    assert "sample_id" in caught.value.message
    assert caught.value.hint


def test_tables_without_common_rows_are_refused(tmp_path):
    one = table(tmp_path / "a.parquet", order=[0, 1])
    other = table(tmp_path / "b.parquet", "old", [2, 3])
    with pytest.raises(RcdiagError, match="no sample is in all") as caught:
        joined(tmp_path, one, other)
    assert str(one) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_row_without_tokens_to_compare_is_counted(tmp_path, where):
    for name in ("a", "b"):
        ids = [TOKENS[0], None if name == where else TOKENS[1]]
        lists = {name: LOG_PROBS[:2]}
        write_policies(
            tmp_path / f"{name}.parquet",
            lists,
            response_ids=pa.array(ids, pa.list_(pa.int32())),
            sample_id=IDS[:2],
        )
    report = joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")[1]
    assert (report.common_samples, report.tokens_differ) == (1, 1)
    assert report.left_out == ["s1 (other tokens)"]


@pytest.mark.parametrize("longer", ["a", "b"])
def test_an_extra_token_on_one_side_is_named(tmp_path, longer):
    """For example a separator of the chat template that the agent loop lost."""
    lost, whole = [5, 6, 8, 9, 5, 6, 8, 9], [5, 6, 7, 8, 9, 5, 6, 7, 8, 9]
    for name in ("a", "b"):
        ids = whole if name == longer else lost
        write_policies(
            tmp_path / f"{name}.parquet",
            {name: [[-0.5] * len(ids)]},
            response_ids=[ids],
            sample_id=["s0"],
        )
    with pytest.raises(RcdiagError, match="no sample is in all") as caught:
        joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert caught.value.message.endswith(
        "(1 have other tokens; those of s0 differ from token 2 of the response on"
        f": {longer} has an extra token 7)"
    )


def test_the_position_of_other_differences_is_named(tmp_path):
    for name, ids in (("a", [5, 6, 8]), ("b", [5, 4, 2])):
        lists = {name: [[-0.5] * 3]}
        path = tmp_path / f"{name}.parquet"
        write_policies(path, lists, response_ids=[ids], sample_id=["s0"])
    with pytest.raises(RcdiagError, match=r"those of s0 differ from token 1 of the response on\)$"):
        joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
