"""NeMo-RL's train_data_stepN.jsonl: whole sequences, lists of one value, padding on the right."""

import math

import numpy as np
import pytest

from rcdiag.table.readers.nemo_rl import NEMO_RL
from tests.table.readers.rows_of import drawn_floats, refusal, rows_of, write_lines

PAD = 9


def sample(prompt, response, mask, r, t, advantages, index=0, width=None, **fields):
    """Return a line as log_batched_dict_as_jsonl writes it: a slice of padded tensors."""
    length = len(prompt) + len(response)
    width = width or length + 3
    zeros = [0.0] * len(prompt)

    def whole(values, fill):
        return [values + [fill] * (width - length)]

    return {
        "content": ["a question", "an answer"][:1],
        "rewards": [0.5],
        "input_lengths": [length],
        "token_ids": whole(prompt + response, PAD),
        "token_loss_mask": whole([0] * len(prompt) + mask, 0),
        "sample_loss_mask": [1.0],
        "advantages": whole(zeros + advantages, 0.0),
        "generation_logprobs": whole(zeros + r, 0.0),
        "prev_logprobs": whole(
            [0.0, *drawn_floats(np.random.default_rng(0), len(prompt) - 1), *t], 0.0
        ),
        "idx": index,
    } | fields


@pytest.fixture
def lines():
    rng = np.random.default_rng(1)
    return [
        sample(
            [1, 2, 3],
            [4, PAD, 6],
            [1, 1, 1],
            drawn_floats(rng, 3),
            drawn_floats(rng, 3),
            [0.25] * 3,
        ),
        sample(
            [1, 2],
            [5, 7, 8, 9],
            [1, 0, 0, 1],
            drawn_floats(rng, 4),
            drawn_floats(rng, 4),
            [-0.5] * 4,
            1,
        ),
    ]


def test_cells(tmp_path, lines):
    result = rows_of(NEMO_RL, write_lines(tmp_path / "train_data_step12.jsonl", lines))
    assert result.rows == [
        {
            "prompt_ids": [1, 2, 3],
            "response_ids": [4, PAD, 6],
            "response_mask": [1, 1, 1],
            "rollout_log_probs": lines[0]["generation_logprobs"][0][3:6],
            "old_log_probs": lines[0]["prev_logprobs"][0][3:6],
            "advantages": [0.25] * 3,
            "reward": 0.5,
            "step": 12,
        },
        {
            "prompt_ids": [1, 2],
            "response_ids": [5, 7, 8, 9],
            "response_mask": [1, 0, 0, 1],
            "rollout_log_probs": lines[1]["generation_logprobs"][0][2:6],
            "old_log_probs": lines[1]["prev_logprobs"][0][2:6],
            "advantages": [-0.5] * 4,
            "reward": 0.5,
            "step": 12,
        },
    ]
    assert result.numbers == [1, 2]
    assert result.changes == {}


def test_steps_follow_each_other_as_numbers(tmp_path, lines):
    files = [
        write_lines(tmp_path / "exp_001" / f"train_data_step{step}.jsonl", lines[:1])
        for step in (10, 9, 2)
    ]
    assert rows_of(NEMO_RL, *files).column("step") == [2, 9, 10]


def test_a_name_without_a_step_gives_none(tmp_path, lines):
    result = rows_of(NEMO_RL, write_lines(tmp_path / "renamed.jsonl", lines))
    assert result.column("step") == [None, None]


def test_removed_samples_keep_their_row(tmp_path, lines):
    lines[1]["sample_loss_mask"] = [0.0]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("response_mask") == [[1, 1, 1], [0, 0, 0, 0]]
    assert result.rows[1]["response_ids"] == [5, 7, 8, 9]
    assert list(result.changes.values()) == [1]


def test_samples_with_a_weight_count_fully_and_are_reported(tmp_path, lines):
    lines[1]["sample_loss_mask"] = [0.5]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("response_mask") == [[1, 1, 1], [1, 0, 0, 1]]
    assert [count for text, count in result.changes.items() if "between 0 and 1" in text] == [1]


def test_a_sample_without_its_length_ends_with_its_last_assistant_token(tmp_path, lines):
    """Otherwise padding would count as response tokens."""
    del lines[0]["input_lengths"]
    lines[1]["input_lengths"] = None
    lines[1]["token_loss_mask"] = [[0, 0, 1, 0, 1, 0, 0, 0, 0]]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("response_ids") == [[4, PAD, 6], [5, 7, 8]]
    assert list(result.changes.values()) == [2]


def test_a_sample_without_assistant_tokens_has_no_response(tmp_path, lines):
    lines[0]["token_loss_mask"] = [[0] * 9]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.numbers == [2]
    assert list(result.changes.values()) == [1]


def test_zeros_in_place_of_previous_log_probs_are_left_out(tmp_path, lines):
    for line in lines:
        line["prev_logprobs"] = [[0.0] * len(line["prev_logprobs"][0])]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("old_log_probs") == [None, None]
    assert [text for text in result.changes if "force_on_policy_ratio" in text]
    assert list(result.changes.values()) == [2]


@pytest.mark.parametrize("value", [0.75, [0.75]])
def test_advantages_of_older_versions_are_one_number(tmp_path, lines, value):
    lines[0]["advantages"] = [value]
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines[:1]))
    assert result.rows[0]["advantage"] == 0.75
    assert "advantages" not in result.rows[0]


def test_dynamic_sampling_pairs_rows_with_filtered_rewards(tmp_path, lines):
    lines[0] |= {"rewards": [0.0], "filtered_rewards": [1.0]}
    lines[1] |= {"rewards": [], "filtered_rewards": [0.25]}
    result = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))
    assert result.column("reward") == [1.0, 0.25]


def test_bare_nan_of_python(tmp_path, lines):
    lines[0]["generation_logprobs"][0][4] = math.nan
    r = rows_of(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines)).rows[0]["rollout_log_probs"]
    assert [math.isnan(value) for value in r] == [False, True, False]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", None, "line 2: no `token_ids`"),
        ("token_loss_mask", None, "line 2: no `token_loss_mask`"),
        (
            "generation_logprobs",
            [[0.0, 0.0]],
            "`generation_logprobs` has 2 values, `token_ids` has 9",
        ),
        ("prev_logprobs", [[0.0] * 10], "`prev_logprobs` has 10 values, `token_ids` has 9"),
        ("advantages", [[0.0] * 4], "`advantages` has 4 values, `token_ids` has 9"),
        ("input_lengths", [10], "`input_lengths` is 10, but `token_ids` has 9 tokens"),
        ("input_lengths", [-1], "`input_lengths` is -1"),
        ("input_lengths", [5], "`token_loss_mask[5]` is 1 after the end of the sequence, 5"),
        ("token_loss_mask", [[0, 0, 1, 0.5, 0, 1, 0, 0, 0]], "`token_loss_mask[3]` is 0.5"),
        ("sample_loss_mask", [math.nan], "`sample_loss_mask` is nan"),
        ("rewards", ["tensor(0.5)"], "`rewards[0]`: expected float, got str"),
        ("token_ids", [[1], [2]], "`token_ids` holds 2 samples"),
        ("generation_logprobs", [0.0], "`generation_logprobs[0]`: expected array, got float"),
    ],
)
def test_broken_samples_are_refused(tmp_path, lines, field, value, message):
    lines[1] |= {field: value, "input_lengths": lines[1]["input_lengths"]} | {field: value}
    assert message in refusal(NEMO_RL, write_lines(tmp_path / "a.jsonl", lines))


def test_a_step_that_two_experiments_have_is_refused(tmp_path, lines):
    files = [
        write_lines(tmp_path / f"exp_{run:03}" / f"train_data_step{step}.jsonl", lines)
        for run, step in ((1, 1), (1, 2), (2, 3))
    ]
    assert len(rows_of(NEMO_RL, *files).rows) == 6  # a run that was resumed
    again = write_lines(tmp_path / "exp_002" / "train_data_step2.jsonl", lines)
    message = refusal(NEMO_RL, *files, again)
    assert "exp_002/train_data_step2.jsonl: the same step as" in message
