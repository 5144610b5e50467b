"""One error names all missing columns, and its hint works when followed."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from tests.builders import write_table

LOG_PROBS = pa.array([[-1.0], [-0.5]])
OWN = {
    "response": pa.array([[1], [2]]),
    "logprobs": LOG_PROBS,
    "my_inference_logprobs": LOG_PROBS,
    "group": pa.array(["a", "b"]),
    "text": pa.array(["one", "two"]),
}
NEEDED = ("rollout_log_probs", "old_log_probs")


def refused(path: Path, renames: dict[str, str] | None = None, needed=NEEDED) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        open_table(path, columns=renames, needed=needed)
    return caught.value


def columns_of(hint: str) -> dict[str, str]:
    """Return the mapping in a hint."""
    columns = dict(re.findall(r"--column (\w+)=(\w+)", hint))
    assert f"`columns={columns}` (" in hint  # in Python as on the command line
    return columns


@pytest.fixture
def own(tmp_path) -> Path:
    return write_table(tmp_path / "own.parquet", **OWN)


def test_all_missing_columns_are_in_one_message_and_the_hint_opens_the_table(own):
    error = refused(own)
    for name in ("response_ids", *NEEDED):
        assert f"`{name}`" in error.message
    assert f"found: {', '.join(OWN)}" in error.message
    table = open_table(own, columns=columns_of(error.hint))
    table.require("response_ids", *NEEDED)
    assert table.renames["rollout_log_probs"] == "my_inference_logprobs"
    assert table.renames["old_log_probs"] == "logprobs"


@pytest.mark.parametrize(
    ("role", "column"),
    [
        ("rollout", "my_sampling_logps"),
        ("rollout", "engine_logprobs"),
        ("old", "actor_logprobs"),
        ("old", "proximal_logp"),
        ("current", "new_logprobs"),
    ],
)
def test_words_in_a_column_name_suggest_its_policy(tmp_path, role, column):
    others = {name: LOG_PROBS for name in ("logprobs", "ref_logprobs", "some_probs", column)}
    path = write_table(tmp_path / "a.parquet", tokens=OWN["response"], **others)
    with pytest.raises(RcdiagError) as caught:
        open_table(path, columns={"response_ids": "tokens"}).require(f"{role}_log_probs")
    assert columns_of(caught.value.hint) == {f"{role}_log_probs": column}


def test_log_probs_of_a_reference_model_are_never_suggested(tmp_path):
    path = write_table(tmp_path / "a.parquet", tokens=OWN["response"], ref_logprobs=LOG_PROBS)
    hint = refused(path, {"response_ids": "tokens"} | {"step": "nothing"}).hint
    assert "ref_logprobs" not in hint


def test_a_typo_on_the_right_side_gets_the_closest_column(own):
    error = refused(own, {"response_ids": "respons"})
    assert "`respons`, the right side of response_ids=respons" in error.message
    open_table(own, columns={"response_ids": "respons"} | columns_of(error.hint))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("response_id", "response_ids"),
        ("rollout_logprobs", "rollout_log_probs"),
        ("inference_logprobs", "inference_log_probs"),
        ("group", "group_id"),
    ],
)
def test_a_typo_on_the_left_side_gets_the_closest_name(own, wrong, right):
    error = refused(own, {wrong: "response"})
    assert f"rcdiag reads no column `{wrong}`, the left side" in error.message
    meant = f"`columns={dict(((right, 'response'),))}` (--column {right}=response)"
    assert error.hint.startswith(f"did you mean {meant}?")


def test_two_wrong_sides_are_both_named(own):
    error = refused(own, {"response_id": "respons"})
    assert "no column `response_id`, the left side; nor is `respons`, the right" in error.message
    assert columns_of(error.hint) == {"response_ids": "response"}


def test_swapped_sides_are_detected(own):
    error = refused(own, {"response": "response_ids"})
    assert "the two sides are swapped" in error.message
    open_table(own, columns=columns_of(error.hint))


def test_suggested_names_are_those_of_the_file(own):
    with pytest.raises(RcdiagError) as caught:
        open_table(own, columns={"response_ids": "response"}).require("rollout_log_probs")
    assert f"found: {', '.join(OWN)}" in caught.value.message


def test_a_column_is_suggested_once_and_only_with_a_readable_type(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        tokens=pa.array(["text", "alone"]),
        response=OWN["response"],
        logprobs=LOG_PROBS,
    )
    columns = columns_of(refused(path).hint)
    assert columns["response_ids"] == "response"
    assert sorted(columns[name] for name in NEEDED) == ["YOUR_COLUMN", "logprobs"]


def test_a_dump_of_text_needs_recorded_token_ids(tmp_path):
    path = write_table(tmp_path / "a.parquet", output=pa.array(["text"]), score=pa.array([1.0]))
    hint = refused(path).hint
    assert "token ids" in hint
    assert "--column" not in hint


def test_recognised_columns_are_listed_beside_missing_ones(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        tokens=OWN["response"],
        inference_logprobs=LOG_PROBS,
        logprobs=LOG_PROBS,
    )
    with pytest.raises(RcdiagError) as caught:
        open_table(path).require(*NEEDED)
    read = "read: `response_ids` from `tokens` (tinker-cookbook, slime, miles), "
    assert read + "`rollout_log_probs` from `inference_logprobs` (prime-rl)" in caught.value.message
    assert columns_of(caught.value.hint) == {"old_log_probs": "logprobs"}
    open_table(path, columns=columns_of(caught.value.hint)).require(*NEEDED)


def test_only_a_mask_with_an_unknown_name_is_suggested(own, tmp_path):
    columns = {"response_ids": [[1]], "mask": pa.array([[1]]), "mask_ratio": pa.array([0.5])}
    path = write_table(tmp_path / "a.parquet", **columns)
    assert open_table(path).unread == {"response_mask": "mask"}
    assert open_table(path, columns={"response_mask": "mask"}).unread == {}


def test_two_missing_sides_are_scored_by_two_engines(tmp_path):
    """`--model` alone scores `rollout` with vLLM and `old` with transformers."""
    path = write_table(tmp_path / "a.parquet", response_ids=OWN["response"])
    with pytest.raises(RcdiagError) as caught:
        open_table(path).require("rollout_log_probs", "old_log_probs")
    assert caught.value.hint.endswith("or score them: `model=PATH` (--model PATH)")
    with pytest.raises(RcdiagError) as caught:
        open_table(path).require("mine_log_probs")
    assert "--policy mine=hf:float32" in caught.value.hint


@pytest.mark.parametrize("name", ["response_ids", "rollout_log_probs", "response_mask"])
def test_a_mapped_column_that_is_not_there_is_named_beside_the_one_of_that_name(tmp_path, name):
    columns = {"response_ids": pa.array([[1, 2], [3, 4]]), "response_mask": pa.array([[1, 1]] * 2)}
    columns["rollout_log_probs"] = pa.array([[-1.0, -0.5]] * 2)
    error = refused(write_table(tmp_path / "a.parquet", **columns), {name: "other"})
    assert f"`other`, the right side of {name}=other" in error.message


def test_a_name_mapped_to_text_beside_a_column_of_that_name_is_refused(tmp_path):
    columns = {"response_ids": pa.array([[1, 2], [3, 4]]), "note": pa.array(["a", "b"])}
    columns["rollout_log_probs"] = pa.array([[-1.0, -0.5]] * 2)
    path = write_table(tmp_path / "a.parquet", **columns)
    error = refused(path, {"rollout_log_probs": "note"}, needed=())
    assert "a column `rollout_log_probs` is there as well" in error.message


def test_tokens_that_are_mapped_to_another_name_leave_none_for_responses(tmp_path):
    columns = {"response_ids": pa.array([[1, 2], [3, 4]]), "ids": pa.array([[5], [6]])}
    path = write_table(tmp_path / "a.parquet", **columns)
    error = refused(path, {"prompt_ids": "response_ids"}, needed=())
    assert "no column is left for the tokens" in error.message
    table = open_table(path, columns={"prompt_ids": "response_ids", "response_ids": "ids"})
    assert next(table.batches()).table["response_ids"].to_pylist() == [[5], [6]]


def test_tokens_that_are_null_in_all_rows_are_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=pa.nulls(2), reward=pa.array([0.0, 1]))
    assert "column `response_ids` holds no tokens" in refused(path, needed=()).message
