"""Columns that are missing, mistyped or mapped wrongly: errors name them, with a hint."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.survey import known_steps
from tests.builders import write_table


def refused(source: Path | str, renames: dict[str, str] | None = None) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        open_table(source, columns=renames)
    assert str(source) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_missing_column_is_named_with_the_closest_name(tmp_path):
    error = refused(write_table(tmp_path / "a.parquet", response_id=pa.array([[1]])))
    assert "`response_ids`" in error.message
    assert "--column response_ids=response_id" in error.hint


def test_a_missing_column_without_a_close_name_still_says_how_to_map(tmp_path):
    error = refused(write_table(tmp_path / "a.parquet", xyz=pa.array([[1]])))
    assert "--column response_ids=" in error.hint
    assert "xyz" in error.message


def test_a_close_name_is_suggested_for_log_probs(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[1]],
        actor_old_logprobs=pa.array([[-1.0]]),
        rollout_log_probs=[[-1.0]],
    )
    with pytest.raises(RcdiagError) as caught:
        open_table(path).require("old_log_probs")
    assert "--column old_log_probs=actor_old_logprobs" in caught.value.hint


@pytest.mark.parametrize(
    ("missing", "existing"),
    [("old_log_probs", "rollout_log_probs"), ("prompt_ids", "response_ids")],
)
def test_a_column_with_another_meaning_is_never_suggested(tmp_path, missing, existing):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]], rollout_log_probs=[[-1.0]])
    with pytest.raises(RcdiagError) as caught:
        open_table(path).require(missing)
    assert f"={existing}" not in caught.value.hint


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("response_ids", pa.array(["1 2"])),
        ("response_ids", pa.array([1])),
        ("response_ids", pa.array([[1.0]])),
        ("prompt_ids", pa.array([["a"]])),
        ("response_mask", pa.array([[1.0]])),
        ("response_mask", pa.array([1])),
        ("old_log_probs", pa.array([[1]])),
        ("old_log_probs", pa.array([-1.0])),
        ("old_log_probs", pa.array([["-1.0"]])),
        ("old_log_probs", pa.array([[[-1.0]]])),
        ("old_entropy", pa.array([["-1.0"]])),
        ("sample_id", pa.array([1.5])),
        ("group_id", pa.array([[1]])),
        ("step", pa.array([True])),
        ("temperature", pa.array(["1.0"])),
        ("reward", pa.array(["1.0"])),
        ("policy_version", pa.array([1.5])),
        ("engine", pa.array([1.5])),
        ("finish_reason", pa.array([0])),
        ("min_p", pa.array(["0.1"])),
        ("old_routed_experts", pa.array([[1, 2]])),
    ],
)
def test_a_wrong_type_is_refused_with_the_column_and_the_expected_type(tmp_path, column, values):
    columns = {"response_ids": pa.array([[1]], pa.list_(pa.int32())), column: values}
    path = write_table(tmp_path / "a.parquet", **columns)
    error = refused(path)
    assert f"`{column}` is {pq.read_schema(path).field(column).type}, wanted" in error.message
    assert f"--column {column}=" in error.hint


@pytest.mark.parametrize(
    "values", [[12.0, 13.0], ["12", "13"], ["step_12", "step_13"], ["global_step12", " 13.0"]]
)
@pytest.mark.parametrize("form", ["parquet", "jsonl", "renamed", "beside others"])
def test_steps_as_whole_floats_or_with_a_name_are_integers(tmp_path, values, form):
    name = "at" if form == "renamed" else "step"
    rows = {"response_ids": [[1], [2]], "rollout_log_probs": [[-1.0], [-1.0]], name: values}
    paths = [tmp_path / ("a.jsonl" if form == "jsonl" else "a.parquet")]
    if form == "jsonl":
        pl.DataFrame(rows).write_ndjson(paths[0])
    else:
        write_table(paths[0], **rows)
    if form == "beside others":
        paths.append(tmp_path / "b.parquet")
        write_table(paths[1], **{**rows, "step": [12, 13]})
    table = open_table(paths, columns={"step": "at"} if form == "renamed" else {})
    assert known_steps(table) == [12, 13]
    assert table.schema.field("step").type == pa.int64()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("value", [12.5, "epoch_1_step_2", "late"])
def test_a_step_that_is_not_an_integer_is_refused_with_its_row(tmp_path, form, value):
    fine = 12.0 if isinstance(value, float) else "12"
    rows = {"response_ids": [[1], [2]], "old_log_probs": [[-1.0], [-1.0]], "step": [fine, value]}
    path = tmp_path / f"a.{form}"
    if form == "jsonl":
        pl.DataFrame(rows).write_ndjson(path)
    else:
        write_table(path, **rows)
    with pytest.raises(RcdiagError, match=r"not a training step") as caught:
        known_steps(open_table(path))
    assert repr(value) in caught.value.message
    place = {"parquet": "row 1", "jsonl": "line 2"}[form]
    assert caught.value.message.startswith(f"{path}, {place}: column `step`")


def test_a_mapping_to_a_missing_column_is_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]])
    assert "`lp`" in refused(path, {"old_log_probs": "lp"}).message


def test_a_mapping_onto_a_name_that_is_taken_is_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]], old_log_probs=[[-1.0]],
                       lp=pa.array([[-2.0]]))  # fmt: skip
    assert "`old_log_probs`" in refused(path, {"old_log_probs": "lp"}).message


def test_one_column_cannot_be_mapped_to_two(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]], lp=pa.array([[-2.0]]))
    with pytest.raises(RcdiagError, match="lp"):
        open_table(path, columns={"old_log_probs": "lp", "rollout_log_probs": "lp"})


def test_files_with_different_columns_are_refused(tmp_path):
    write_table(tmp_path / "a.parquet", response_ids=[[1]])
    write_table(tmp_path / "b.parquet", response_ids=[[1]], old_log_probs=[[-1.0]])
    with pytest.raises(
        RcdiagError, match=r"b\.parquet: not part of one .* it also has `old_log_prob"
    ) as more:
        open_table(tmp_path)
    assert "step_*.parquet" in more.value.hint
    with pytest.raises(RcdiagError, match=r"a\.parquet: .* it has no `old_log_probs`$"):
        open_table([tmp_path / "b.parquet", tmp_path / "a.parquet"])


def test_a_file_of_another_kind_is_reported_as_such(tmp_path):
    """The other file is a table, so the error is about giving the two together."""
    write_table(tmp_path / "a.parquet", response_ids=[[1]])
    pq.write_table(pa.table({"loss": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(RcdiagError, match=r"b\.parquet: .* no `response_ids`; it also has `loss`"):
        open_table(tmp_path)


def test_files_with_different_types_are_refused(tmp_path):
    write_table(tmp_path / "a.parquet", response_ids=[[1]])
    write_table(tmp_path / "b.parquet", response_ids=pa.array([[1]], pa.list_(pa.int64())))
    with pytest.raises(RcdiagError, match=r"`response_ids` is list<.*int64>, not list<.*int32>"):
        open_table(tmp_path)


def test_objects_of_an_engine_in_place_of_numbers(tmp_path):
    objects = [[{"token": 5, "logprob": -1.0}], [{"token": 6, "logprob": -2.0}]]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"response_ids": [[5], [6]], "rollout_log_probs": objects}), path)
    with pytest.raises(RcdiagError) as caught:
        open_table(path)
    assert caught.value.hint.startswith("write only its field `logprob`, one number per token")
