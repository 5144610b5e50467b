"""Columns named as in trainers and engines are recognised unless there is doubt."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.column_names import known_names, spelled
from rcdiag.table.opening import open_table
from rcdiag.table.padding import PADDED_ROWS
from rcdiag.table.schema import column_spec
from rcdiag.table.table import Table
from tests.builders import write_table

IDS = pa.array([[11, 12, 13], [21, 22]], pa.list_(pa.int32()))
PROMPTS = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
WHOLE = pa.array([[1, 2, 11, 12, 13], [3, 21, 22]], pa.list_(pa.int32()))
LOG_PROBS = pa.array([[-1.0, -0.5, -0.2], [-0.3, -0.4]])
MASK = pa.array([[1, 1, 0], [1, 1]], pa.list_(pa.uint8()))


def table_of(folder: Path, renames: dict[str, str] | None = None, **columns: object) -> Table:
    return open_table(write_table(folder / "a.parquet", **columns), columns=renames)


def refused(folder: Path, renames: dict[str, str] | None = None, **columns: object) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        table_of(folder, renames, **columns).require("rollout_log_probs", "old_log_probs")
    return caught.value


def test_every_known_name_maps_to_a_column_and_is_not_a_table_name():
    for column, names in known_names().items():
        assert column_spec(column) is not None
        for known in names:
            assert column_spec(known.name) is None, known.name
            assert known.pages or not known.programs
            assert all(page.startswith("https://") for page in known.pages)
    everywhere = [known.name for names in known_names().values() for known in names]
    assert len(everywhere) == len(set(everywhere))


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        (
            {"responses": IDS, "rollout_log_probs": LOG_PROBS, "old_log_prob": LOG_PROBS},
            {"response_ids": "responses", "old_log_probs": "old_log_prob"},
        ),
        (
            {"completion_ids": IDS, "sampling_per_token_logps": LOG_PROBS, "old_logps": LOG_PROBS},
            {
                "response_ids": "completion_ids",
                "rollout_log_probs": "sampling_per_token_logps",
                "old_log_probs": "old_logps",
            },
        ),
        (
            {"token_ids": IDS, "generation_logprobs": LOG_PROBS, "prev_logprobs": LOG_PROBS},
            {
                "response_ids": "token_ids",
                "rollout_log_probs": "generation_logprobs",
                "old_log_probs": "prev_logprobs",
            },
        ),
        (
            {"tokens": IDS, "inference_logprobs": LOG_PROBS, "trainer_logprobs": LOG_PROBS},
            {
                "response_ids": "tokens",
                "rollout_log_probs": "inference_logprobs",
                "old_log_probs": "trainer_logprobs",
            },
        ),
        (
            {"response_ids": IDS, "rollout_log_probs": LOG_PROBS, "log_probs": LOG_PROBS},
            {"old_log_probs": "log_probs"},
        ),
    ],
)
def test_names_of_trainers_are_recognised(tmp_path, columns, taken):
    table = table_of(tmp_path, **columns)
    assert dict(table.naming.taken) == taken
    assert dict(table.renames) == taken
    table.require("response_ids", "rollout_log_probs", "old_log_probs")
    for name, own in taken.items():
        assert next(table.batches([name])).table[name].to_pylist() == columns[own].to_pylist()
        assert f"`{name}` from `{own}`" in repr(table)


@pytest.mark.parametrize(
    ("own", "values", "name"),
    [
        ("uid", pa.array(["a", "a"]), "group_id"),
        ("group", pa.array([1, 2]), "group_id"),
        ("problem_id", pa.array(["p", "q"]), "group_id"),
        ("loss_mask", MASK, "response_mask"),
        ("completion_mask", MASK, "response_mask"),
        ("prompts", PROMPTS, "prompt_ids"),
        ("global_step", pa.array([3, 4]), "step"),
        ("raw_reward", pa.array([0.0, 1.0]), "reward"),
        ("advantages", pa.array([0.5, -0.5]), "advantage"),
        ("advantage", LOG_PROBS, "advantages"),
        ("weight_version", pa.array(["3", "4"]), "policy_version"),
    ],
)
def test_other_columns_are_recognised_too(tmp_path, own, values, name):
    table = table_of(tmp_path, response_ids=IDS, **{own: values})
    assert dict(table.naming.taken) == {name: own}
    assert name in table.columns
    assert own not in table.columns


@pytest.mark.parametrize(
    ("own", "values", "name"),
    [
        ("group", pa.array(["a", None]), "group_id"),  # a null is refused where groups are read
        ("prompt_idx", pa.array([0, 0]), "group_id"),  # counted from 0 in every step
        ("loss_mask", pa.array([[1, 1], [1, 1]]), "response_mask"),  # other lengths
        ("loss_mask", pa.array([[1, 1, 0], None]), "response_mask"),
        ("loss_mask", pa.array([[2, 1, 0], [1, 1]]), "response_mask"),
        ("loss_mask", pa.array([[0, 0, 0], [0, 0]]), "response_mask"),
        ("mask", MASK, "response_mask"),
        ("attention_mask", MASK, "response_mask"),
        ("rewards", pa.array([0.0, 1.0]), "reward"),
        ("prompts", pa.array(["text", "alone"]), "prompt_ids"),
        ("prompts", pa.array([[0, 0, 0, 1, 2], [0, 0, 0, 0, 3]]), "prompt_ids"),  # padded
        ("inference_logprobs", pa.array([[-1.0, -0.5], [-0.3, -0.4]]), "rollout_log_probs"),
        ("ref_logprobs", LOG_PROBS, "rollout_log_probs"),
        ("group_size", pa.array([8, 8]), "group_id"),
    ],
)
def test_ambiguous_columns_are_not_recognised(tmp_path, own, values, name):
    table = table_of(tmp_path, response_ids=IDS, **{own: values})
    assert not table.naming.taken
    assert name not in table.columns


def test_two_candidates_for_one_column_are_both_named(tmp_path):
    two = {"generation_logprobs": LOG_PROBS, "inference_logprobs": LOG_PROBS}
    error = refused(tmp_path, response_ids=IDS, old_log_probs=LOG_PROBS, **two)
    assert "`generation_logprobs` and `inference_logprobs` both have a name for it" in error.message
    table = table_of(tmp_path, {"rollout_log_probs": "inference_logprobs"}, response_ids=IDS, **two)
    assert not table.naming.taken


def test_a_list_that_includes_the_prompt_is_not_the_response(tmp_path):
    error = refused(
        tmp_path, input_ids=WHOLE, inference_logprobs=LOG_PROBS, prev_logprobs=LOG_PROBS
    )
    assert "holds the prompt too: row 0 has 5 tokens there, and 3 values" in error.message
    assert "response_ids=input_ids" not in error.hint
    assert "last tokens" in error.hint


@pytest.mark.parametrize(
    "beside",
    [
        {"prompt_ids": PROMPTS},
        {"prompts": PROMPTS},
        {"loss_mask": pa.array([[0, 0, 1, 1, 1], [0, 0, 1]], pa.list_(pa.uint8()))},
    ],
)
def test_whole_sequences_with_log_probs_of_the_prompt_are_not_the_response(tmp_path, beside):
    values = pa.array([[-1.0] * 5, [-1.0] * 3])
    columns = {"input_ids": WHOLE, "inference_logprobs": values, "prev_logprobs": values}
    error = refused(tmp_path, **columns, **beside)
    assert "no column `response_ids` (`input_ids`: it" in error.message


def test_log_probs_of_zero_at_the_first_tokens_look_like_a_prompt(tmp_path):
    values = pa.array([[0.0, 0.0, -1.0, -1.0, -1.0], [0.0, 0.0, -1.0]])
    error = refused(tmp_path, token_ids=WHOLE, generation_logprobs=values, prev_logprobs=values)
    assert "may begin with the prompt: `generation_logprobs` is 0 at the first" in error.message


def test_a_name_for_the_response_precedes_one_for_the_whole_sequence(tmp_path):
    table = table_of(tmp_path, responses=IDS, input_ids=WHOLE, rollout_logprobs=LOG_PROBS)
    assert table.naming.taken["response_ids"] == "responses"


def test_logprobs_beside_columns_of_an_engine_are_the_samplers(tmp_path):
    stop = pa.array(["stop", "length"])
    table = table_of(tmp_path, token_ids=IDS, logprobs=LOG_PROBS, finish_reason=stop)
    assert table.naming.taken["rollout_log_probs"] == "logprobs"


@pytest.mark.parametrize("beside", [{}, {"finish_reason": ["stop", "stop"], "logps": LOG_PROBS}])
def test_logprobs_alone_name_no_policy(tmp_path, beside):
    columns = {"response_ids": IDS, "logprobs": LOG_PROBS, **beside}
    table = table_of(tmp_path, **columns)
    assert not table.naming.taken
    assert "its name does not say whose" in refused(tmp_path, **columns).message


def test_a_mapping_takes_precedence_and_an_empty_one_disables(tmp_path):
    columns = {"response_ids": IDS, "uid": pa.array(["a", "b"]), "my_group": pa.array(["x", "x"])}
    assert table_of(tmp_path, **columns).naming.taken == {"group_id": "uid"}
    mapped = table_of(tmp_path, {"group_id": "my_group"}, **columns)
    assert dict(mapped.renames) == {"group_id": "my_group"}
    assert not mapped.naming.taken
    off = table_of(tmp_path, {"group_id": ""}, **columns)
    assert "group_id" not in off.columns
    assert off.unread == {}


def test_an_empty_mapping_does_not_hide_a_column_of_the_file(tmp_path):
    with pytest.raises(RcdiagError, match="the file has a column `step`"):
        table_of(tmp_path, {"step": ""}, response_ids=IDS, step=[1, 2])


def test_a_column_with_a_table_name_is_never_replaced(tmp_path):
    columns = {"response_ids": IDS, "rollout_log_probs": LOG_PROBS, "group_id": ["a", "b"]}
    others = {"inference_logprobs": LOG_PROBS, "uid": ["c", "d"], "tokens": WHOLE}
    assert not table_of(tmp_path, **columns, **others).naming.taken


def test_only_the_first_rows_are_compared(tmp_path):
    rows = PADDED_ROWS + 10
    columns = {"response_ids": pa.array([[1, 2]] * rows)}
    lengths = [2] * (rows - 1) + [3]
    late = pa.array([[1] * length for length in lengths], pa.list_(pa.uint8()))
    table = table_of(tmp_path, **columns, loss_mask=late)
    assert table.naming.taken == {"response_mask": "loss_mask"}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("old_logps", "old_log_probs"),
        ("rollout_logprobs", "rollout_log_probs"),
        ("current_per_token_logps", "current_log_probs"),
        ("older_logps", None),
        ("ref_logps", None),
    ],
)
def test_spellings_of_own_names(name, column):
    assert spelled(name) == column


@pytest.mark.parametrize(
    ("tokens", "rollout", "old", "group"),
    [
        ("responseIds", "rolloutLogProbs", "oldLogProbs", "groupId"),
        ("ResponseTokenIds", "InferenceLogprobs", "TrainerLogprobs", "GroupID"),
        ("RESPONSE_IDS", "ROLLOUT_LOG_PROBS", "OLD_LOG_PROBS", "UID"),
        ("response ids", "rollout log-probs", "old log probs", "uid"),
        ("batch/responses", "batch/rollout_log_probs", "batch/old_log_prob", "batch/uid"),
        ("data.responses", "data.rollout_log_probs", "data.old_log_probs", "data.uid"),
    ],
)
def test_other_spellings_of_known_names_are_recognised(tokens, rollout, old, group, tmp_path):
    written = {
        tokens: [[1, 2], [3]], rollout: [[-1.0, -2.0], [-3.0]], old: [[-1.5, -2.5], [-3.5]],
        group: ["a", "a"],
    }  # fmt: skip
    pq.write_table(pa.table(written), tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet")
    taken = {"response_ids": tokens, "rollout_log_probs": rollout, "old_log_probs": old}
    assert table.naming.taken == {**taken, "group_id": group}
    (rows,) = table.batches()
    assert [rows.table[name].to_pylist() for name in taken] == list(written.values())[:3]


def test_two_spellings_of_one_column_are_both_named(tmp_path):
    two = {"rolloutLogProbs": LOG_PROBS, "data.rollout_logps": LOG_PROBS}
    error = refused(tmp_path, responses=IDS, old_log_probs=LOG_PROBS, **two)
    assert "`rolloutLogProbs` and `data.rollout_logps` both have a name for it" in error.message


def test_log_probs_of_another_type_are_reported_and_probabilities_ignored(tmp_path):
    others = {"rollout_logprobs": pa.array([b"ab", b"c"]), "old_probs": LOG_PROBS}
    error = refused(tmp_path, responses=IDS, **others)
    assert "`rollout_logprobs`: its type is binary" in error.message
    assert "old_probs" not in error.hint
    assert "rollout_logprobs" not in error.hint
