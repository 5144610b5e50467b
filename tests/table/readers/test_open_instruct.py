"""open-instruct's rollouts: no mask, groups by step and prompt, NaN for an empty response."""

import math

import numpy as np
import pytest

from rcdiag.table.readers.open_instruct import OPEN_INSTRUCT
from rcdiag.table.readers.peek import Peek
from tests.table.readers.rows_of import drawn_floats, refusal, rows_of, write_lines


def rollout(step, sample, prompt, response, log_probs, **fields):
    return {
        "step": step,
        "sample_idx": sample,
        "prompt_idx": sample // 2,
        "prompt_tokens": prompt,
        "response_tokens": response,
        "reward": 1.5,
        "advantage": -0.25,
        "finish_reason": "stop",
        "dataset": "math",
        "ground_truth": "4",
        "request_info": None,
        "logprobs": log_probs,
    } | fields


def test_cells(tmp_path):
    r = drawn_floats(np.random.default_rng(0), 3)
    lines = [rollout(5, k, [1, 2], [3, 4, 5], r) for k in range(3)] + [
        rollout(6, 0, [1, 2], [3], r[:1])
    ]
    result = rows_of(OPEN_INSTRUCT, write_lines(tmp_path / "run_rollouts_000000.jsonl", lines))
    assert result.rows[0] == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5],
        "response_mask": [1, 1, 1],
        "rollout_log_probs": r,
        "reward": 1.5,
        "advantage": -0.25,
        "step": 5,
        "group_id": "5/0",
        "finish_reason": "stop",
        "dataset": "math",
    }
    assert result.column("group_id") == ["5/0", "5/0", "5/1", "6/0"]
    assert result.changes == {}


def test_shards_are_in_order(tmp_path):
    for shard in (10, 9):
        line = rollout(shard, 0, [1], [2], [-0.5])
        write_lines(tmp_path / f"run_rollouts_{shard:06d}.jsonl", [line])
    assert rows_of(OPEN_INSTRUCT, *tmp_path.iterdir()).column("step") == [9, 10]


def test_the_file_of_metadata_is_not_a_dump(tmp_path):
    line = {"run_name": "a", "git_commit": "b", "model_name": "c", "timestamp": "d"}
    assert not OPEN_INSTRUCT.detect(Peek(write_lines(tmp_path / "a_metadata.jsonl", [line])))


@pytest.mark.parametrize("called", [True, [False, True]])
def test_tool_tokens_are_those_with_log_prob_zero(tmp_path, called):
    info = {"tool_calleds": called, "tool_outputs": "..."}
    lines = [
        rollout(0, 0, [1], [2, 3, 4], [-0.5, 0.0, -0.25], request_info=info),
        rollout(0, 1, [1], [2, 3, 4], [-0.5, 0.0, -0.25], request_info={"tool_calleds": False}),
    ]
    result = rows_of(OPEN_INSTRUCT, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("response_mask") == [[1, 0, 1], [1, 1, 1]]
    assert list(result.changes.values()) == [1]


def test_an_empty_response_is_one_end_token_that_was_not_sampled(tmp_path):
    lines = [rollout(0, 0, [1], [2], [math.nan]), rollout(0, 1, [1], [2, 3], [math.nan, -0.5])]
    file = write_lines(tmp_path / "a.jsonl", lines)
    assert "NaN" in file.read_text()
    result = rows_of(OPEN_INSTRUCT, file)
    assert result.column("response_mask") == [[0], [1, 1]]
    assert math.isnan(result.rows[1]["rollout_log_probs"][0])
    assert list(result.changes.values()) == [1]


def test_a_row_without_log_probs_or_reward(tmp_path):
    lines = [rollout(0, 0, [1], [2], None, reward=None, advantage=None)]
    row = rows_of(OPEN_INSTRUCT, write_lines(tmp_path / "a.jsonl", lines)).rows[0]
    assert not {"rollout_log_probs", "reward", "advantage"} & row.keys()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": [-0.5]}, "line 2: `logprobs` has 1 values, `response_tokens` has 2"),
        ({"response_tokens": [1, "2"]}, "line 2: `response_tokens[1]`: expected int, got str"),
        ({"reward": "1.0"}, "line 2: `reward`: expected float | null, got str"),
        ({"step": 1.5}, "line 2: `step`: expected int | null, got float"),
    ],
)
def test_broken_rows_are_refused(tmp_path, fields, message):
    good = rollout(0, 0, [1], [2, 3], [-0.5, -0.25])
    assert message in refusal(
        OPEN_INSTRUCT, write_lines(tmp_path / "a.jsonl", [good, good | fields])
    )
