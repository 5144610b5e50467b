"""slime's debug dumps: rollout files, train files of format_version 2, and their join."""

import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.readers.slime import SLIME
from tests.table.readers.rows_of import drawn_floats, refusal, rows_of


def sample(index, prompt, response, r, group=0, **fields):
    """Return a sample as Sample.to_dict gives it."""
    return {
        "group_index": group,
        "index": index,
        "rollout_id": None,
        "prompt": "...",
        "tokens": prompt + response,
        "multimodal_inputs": None,
        "response": "...",
        "response_length": len(response),
        "label": None,
        "reward": 0.5,
        "loss_mask": None,
        "weight_versions": ["3"],
        "rollout_log_probs": r,
        "rollout_routed_experts": None,
        "remove_sample": False,
        "teacher_log_probs": None,
        "status": "completed",
        "metadata": {},
    } | fields


def save_rollout(folder, number, samples, name="{}.pt", **fields):
    file = folder / "rollout_data" / name.format(number)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": number, "samples": samples} | fields, file)
    return file


def trained(index, position, prompt, response, r, t, **fields):
    """Return a sample of the train dump: tensors of response length under plural names."""
    length = len(response)
    return {
        "data_parallel_rank": 0,
        "sample_index": index,
        "rollout_position": position,
        "tokens": torch.tensor(prompt + response),
        "response_lengths": length,
        "total_lengths": len(prompt) + length,
        "loss_masks": torch.ones(length, dtype=torch.int),
        "rollout_log_probs": torch.tensor(r),
        "log_probs": torch.tensor(t),
        "ref_log_probs": torch.tensor(t) - 1,
        "advantages": torch.full((length,), 0.25),
        "returns": torch.zeros(length),
        "entropy": torch.full((length,), 0.75),
        "rewards": -1.0,
        "truncated": 0,
        "rollout_ids": index,
        "source_names": "a",
    } | fields


def save_train(folder, number, samples, **fields):
    file = folder / "train_data" / f"{number}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    payload = {
        "format_version": 2,
        "rollout_id": number,
        "rank": 0,
        "samples": samples,
        "dp_shards": [{"rank": 0, "data_parallel_rank": 0, "sample_indices": None}],
        "raw_reward": [1.5, 2.5, 3.5],
    }
    torch.save(payload | fields, file)
    return file


@pytest.fixture
def numbers():
    rng = np.random.default_rng(3)
    return [(drawn_floats(rng, size), drawn_floats(rng, size)) for size in (3, 2, 4)]


@pytest.fixture
def rollouts(numbers):
    return [
        sample(8, [1, 2], [4, 5, 6], numbers[0][0], 4),
        sample(9, [1, 2], [7, 8], numbers[1][0], 4, loss_mask=[1, 0], status="truncated"),
        sample(10, [3], [9, 9, 9, 9], numbers[2][0], 5, remove_sample=True),
    ]


@pytest.fixture
def training(numbers):
    (a, b), (c, d), _ = numbers
    return [trained(8, 0, [1, 2], [4, 5, 6], a, b), trained(9, 1, [1, 2], [7, 8], c, d)]


def test_cells_of_a_rollout_file(tmp_path, rollouts, numbers):
    result = rows_of(SLIME, save_rollout(tmp_path, 12, rollouts))
    common = {"reward": 0.5, "policy_version": 3, "step": 12}
    assert result.rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [4, 5, 6],
            "response_mask": [1, 1, 1],
            "rollout_log_probs": numbers[0][0],
            "group_id": 4,
            "sample_index": 8,
            "finish_reason": "stop",
        }
        | common,
        {
            "prompt_ids": [1, 2],
            "response_ids": [7, 8],
            "response_mask": [1, 0],
            "rollout_log_probs": numbers[1][0],
            "group_id": 4,
            "sample_index": 9,
            "finish_reason": "length",
        }
        | common,
        {
            "prompt_ids": [3],
            "response_ids": [9, 9, 9, 9],
            "response_mask": [0, 0, 0, 0],
            "rollout_log_probs": numbers[2][0],
            "group_id": 5,
            "sample_index": 10,
            "finish_reason": "stop",
        }
        | common,
    ]
    assert list(result.changes.values()) == [1]


def test_experts_of_response_tokens(tmp_path, rollouts):
    """The engine has no experts of the last token; a sample may have none at all."""
    of_tokens = np.arange(1, 4 * 2 * 3 + 1).reshape(4, 2, 3)
    rollouts[0]["rollout_routed_experts"] = torch.from_numpy(of_tokens).int()
    result = rows_of(SLIME, save_rollout(tmp_path, 12, rollouts[:2]))
    flat = of_tokens.reshape(4, 6).tolist()
    assert result.column("rollout_routed_experts") == [[flat[2], flat[3], []], None]


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (torch.ones(4, 6, dtype=torch.int), "not an array of experts"),
        (torch.ones(3, 2, 2, dtype=torch.int), "has 3 values; the sample has 5 tokens"),
        (torch.full((4, 2, 2), -1), "not expert numbers"),
    ],
)
def test_wrong_experts_are_refused(tmp_path, rollouts, experts, message):
    rollouts[0]["rollout_routed_experts"] = experts
    with pytest.raises(RcdiagError, match=message):
        rows_of(SLIME, save_rollout(tmp_path, 12, rollouts))


def test_the_nucleus_of_response_tokens(tmp_path, rollouts, training):
    """Flat ids and offsets; tokens that were not sampled have none, a sample may lack them."""
    kept = {
        "rollout_top_p_token_ids": torch.tensor([4, 9, 6], dtype=torch.int32),
        "rollout_top_p_token_offsets": torch.tensor([0, 2, 2, 3], dtype=torch.int32),
    }
    rollouts[0] |= kept | {"loss_mask": [1, 0, 1]}
    training[0] |= kept
    saved = save_rollout(tmp_path, 12, rollouts[:2]), save_train(tmp_path / "t", 12, training)
    for file in saved:
        assert rows_of(SLIME, file).column("rollout_kept_ids") == [[[4, 9], [], [6]], None]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"rollout_top_p_token_ids": [4]}, "offsets` is missing"),
        ({"rollout_top_p_token_offsets": [0, 1, 1, 1]}, "ids` is missing"),
        (
            {"rollout_top_p_token_ids": [4], "rollout_top_p_token_offsets": [0, 1, 1]},
            "has 3 values for 3 tokens and the end",
        ),
        (
            {"rollout_top_p_token_ids": [4], "rollout_top_p_token_offsets": [0, 1, 2, 1]},
            "does not go from 0 to the 1 ids",
        ),
    ],
)
def test_a_nucleus_that_does_not_fit_is_refused(tmp_path, rollouts, kept, message):
    rollouts[0] |= kept
    with pytest.raises(RcdiagError, match=message):
        rows_of(SLIME, save_rollout(tmp_path, 12, rollouts))


def test_steps_are_in_order_and_evaluations_left_out(tmp_path, rollouts):
    files = [save_rollout(tmp_path, step, rollouts[:1]) for step in (10, 9)]
    files.append(save_rollout(tmp_path, 9, rollouts, name="eval_{}.pt"))
    result = rows_of(SLIME, *files)
    assert result.column("step") == [9, 10]
    assert [text for text in result.changes if "evaluations" in text]


def test_aborted_samples_and_missing_fields(tmp_path, rollouts):
    rollouts[0] |= {"tokens": [], "response_length": 0, "rollout_log_probs": None}
    rollouts[1] |= {"rollout_log_probs": None, "reward": None, "weight_versions": []}
    rollouts[2] |= {"reward": {"right": 1.0}, "weight_versions": ["3", "4"]}
    result = rows_of(SLIME, save_rollout(tmp_path, 0, rollouts))
    assert result.column("sample_index") == [9, 10]
    assert result.numbers == [1, 2]
    assert not {"rollout_log_probs", "reward", "policy_version"} & result.rows[0].keys()
    assert not {"reward", "policy_version"} & result.rows[1].keys()
    assert sorted(result.changes.values()) == [1, 1, 1, 1]


def test_one_of_several_rewards_is_chosen(tmp_path, rollouts):
    rollouts[0]["reward"] = {"right": 1.0, "format": 0.25}
    rollouts[1]["reward"] = {"right": 0, "format": np.float32(0.5)}
    rollouts[2]["reward"] = None
    path = save_rollout(tmp_path, 0, rollouts)
    assert rows_of(SLIME, path, reward_key="format").column("reward") == [0.25, 0.5, None]
    assert rows_of(SLIME, path, reward_key="right").column("reward") == [1.0, 0.0, None]
    result = rows_of(SLIME, path)
    assert result.column("reward") == [None] * 3
    (warning,) = [text for text in result.changes if "reward_key" in text]
    assert "a dictionary (right, format)" in warning
    table = open_table(path, given={"reward_key": "right"})
    assert next(table.batches(["reward"])).table["reward"].to_pylist() == [1.0, 0.0, None]
    assert table.metadata["given"] == {"reward_key": "right"}


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"right": 1.0}, "sample 0: its rewards are right, and none is `rigth`"),
        (1.0, "sample 0: the reward is one number"),
        ({"rigth": "yes"}, "sample 0: `reward[rigth]` is not a number but str"),
        ({"rigth": True}, "sample 0: `reward[rigth]` is not a number but bool"),
    ],
)
def test_an_impossible_choice_of_reward_is_refused(tmp_path, rollouts, reward, message):
    rollouts[0]["reward"] = reward
    assert message in refusal(SLIME, save_rollout(tmp_path, 0, rollouts), reward_key="rigth")


def test_cells_of_a_train_file(tmp_path, training, numbers):
    result = rows_of(SLIME, save_train(tmp_path, 7, training))
    assert result.rows[0] == {
        "prompt_ids": [1, 2],
        "response_ids": [4, 5, 6],
        "response_mask": [1, 1, 1],
        "rollout_log_probs": numbers[0][0],
        "old_log_probs": numbers[0][1],
        "ref_log_probs": (np.array(numbers[0][1], np.float32) - 1).tolist(),
        "old_entropy": [0.75] * 3,
        "advantages": [0.25] * 3,
        "sample_index": 8,
        "step": 7,
        "reward": 1.5,
    }
    assert result.column("reward") == [1.5, 2.5]


def test_both_files_of_a_step_are_joined_by_position(tmp_path, rollouts, training, numbers):
    files = save_rollout(tmp_path, 7, rollouts), save_train(tmp_path, 7, training[::-1])
    result = rows_of(SLIME, *files)
    assert result.column("group_id") == [4, 4]
    assert result.column("finish_reason") == ["length", "stop"]
    assert result.column("old_log_probs") == [numbers[1][1], numbers[0][1]]
    assert result.column("reward") == [2.5, 1.5]
    assert sorted(result.changes.values()) == [1, 1, 2]


def test_samples_without_a_position_are_joined_by_index(tmp_path, rollouts, training):
    for one in training:
        del one["rollout_position"]
    files = save_rollout(tmp_path, 7, rollouts), save_train(tmp_path, 7, training)
    result = rows_of(SLIME, *files)
    assert result.column("group_id") == [4, 4]
    assert result.column("reward") == [0.5, 0.5]


def test_files_of_other_runs_are_not_joined(tmp_path, rollouts, training):
    rollouts[1]["tokens"] = [1, 2, 7, 9]
    files = save_rollout(tmp_path, 7, rollouts), save_train(tmp_path, 7, training)
    assert "sample 1: its tokens differ from those of sample 1 in the rollout file" in refusal(
        SLIME, *files
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rollout_log_probs": [0.0]}, "`rollout_log_probs` has 1 values; the response has 2"),
        ({"rollout_log_probs": ["-0.5", "x"]}, "`rollout_log_probs` is not a list of numbers"),
        ({"rollout_log_probs": [-0.5, None]}, "`rollout_log_probs` is not a list of numbers"),
        ({"rollout_log_probs": [[-0.5, 1.0]]}, "`rollout_log_probs` is not a list of numbers"),
        ({"loss_mask": [1, 2]}, "`loss_mask` holds values other than 0 and 1"),
        ({"tokens": [1, 2, 7, 2**31]}, "`tokens` holds 2147483648, which is not a token id"),
        ({"tokens": [1, 2, 7, -1]}, "`tokens` holds -1, which is not a token id"),
        ({"tokens": [1, 2, 7, 2**70]}, "`tokens` is not a list of numbers"),
        ({"tokens": [1.0, 2.0, 7.0, 8.0]}, "`tokens` is not a list of numbers"),
        ({"tokens": None}, "`tokens` is missing"),
        ({"response_length": 5}, "`response_length` is 5, but the sample has 4 tokens"),
        ({"response_length": None}, "`response_length` is missing"),
        ({"response_length": "2"}, "`response_length` is not a whole number but str"),
        ({"reward": "good"}, "`reward` is not a number but str"),
    ],
)
def test_broken_samples_are_refused(tmp_path, rollouts, fields, message):
    rollouts[1] |= fields
    text = refusal(SLIME, save_rollout(tmp_path, 0, rollouts))
    assert f"0.pt, sample 1: {message}" in text


def test_too_few_rewards_are_refused(tmp_path, training):
    file = save_train(tmp_path, 7, training, raw_reward=[1.5])
    assert "sample 1: `rollout_position` is 1, but the file has 1 rewards" in refusal(SLIME, file)


def test_a_wrong_length_is_refused(tmp_path, training):
    training[1]["total_lengths"] = 5
    file = save_train(tmp_path, 7, training)
    assert "sample 1: `total_lengths` is 5, but the sample has 4 tokens" in refusal(SLIME, file)


def test_a_newer_train_file_is_refused(tmp_path, training):
    assert "format_version 3" in refusal(SLIME, save_train(tmp_path, 0, training, format_version=3))


def test_other_payloads_are_refused(tmp_path):
    file = save_rollout(tmp_path, 0, {"a": 1})
    assert "no list `samples`" in refusal(SLIME, file)
    file = save_rollout(tmp_path, 0, [7])
    assert "sample 0: not a dictionary but int" in refusal(SLIME, file)
