"""rLLM's episodes, in the form of its rllm/types.py and rllm/eval/episode_store.py at 9beb6e0f."""

import json
import math

import pytest

from rcdiag.table.readers.rllm import LAST_REWARD, RLLM, WITHOUT_IDS
from rcdiag.table.readers.turns import JOINED, SPLIT
from tests.table.readers.rows_of import refusal, rows_of, write_lines


def step(prompt, tokens, log_probs, **fields):
    """Return a step as `Step.to_dict()` does."""
    return {
        "prompt_ids": prompt,
        "response_ids": tokens,
        "logprobs": log_probs,
        "routing_matrices": None,
        "chat_completions": [{"role": "user", "content": "q"}],
        "observation": None,
        "thought": "",
        "action": None,
        "model_response": "a",
        "model_output": {"finish_reason": "stop"},
        "info": {},
        "reward": 0.25,
        "done": False,
        "mc_return": 0.0,
        "advantage": None,
        "weight_version": 3,
    } | fields


def episode(*steps, name="solver", reward=1.0, **fields):
    """Return an episode as `Episode.to_dict()` does."""
    trajectory = {"uid": "uid", "name": name, "task": {}, "steps": list(steps), "reward": reward}
    return {
        "id": "task-7:2",
        "task": {"question": "q"},
        "termination_reason": "env_done",
        "is_correct": True,
        "session_id": None,
        "trajectories": [trajectory],
        "metrics": {},
        "info": {},
    } | fields


TURNS = (step([1, 2], [3, 4], [-0.5, -0.25]), step([1, 2, 3, 4, 8], [5], [-1.0]))


def written(folder, *episodes):
    return write_lines(folder / "episodes.jsonl", episodes)


def test_an_episode(tmp_path):
    result = rows_of(RLLM, written(tmp_path, episode(*TURNS)))
    assert result.rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 8, 5],
            "response_mask": [1, 1, 0, 1],
            "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0],
            "policy_version": 3,
            "finish_reason": "stop",
            "turn": 0,
            "reward": 1.0,
            "group_id": "task-7:solver",
            "trajectory": "uid",
            "agent": "solver",
        }
    ]
    assert result.changes == {JOINED: 1}


def test_files_of_an_evaluation(tmp_path):
    """`rllm eval` writes one multi-line file per episode, whose id is not a task id."""
    for place in range(2):
        data = episode(*TURNS, id=f"id-{place}", eval_idx=place)
        file = tmp_path / "episodes" / f"episode_{place:06d}_task-7.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(data, indent=2))
    result = rows_of(RLLM, *(tmp_path / "episodes").iterdir())
    assert len(result.rows) == 2
    assert result.rows[0]["group_id"] == result.rows[1]["group_id"]


def test_a_rewritten_history(tmp_path):
    result = rows_of(RLLM, written(tmp_path, episode(*TURNS, step([1, 9], [6], [-2.0]))))
    assert result.column("turn") == [0, 2]
    assert result.column("response_ids") == [[3, 4, 8, 5], [6]]
    assert result.changes[SPLIT] == 1


def test_several_trajectories(tmp_path):
    """Trajectories of one name are compared, as in rLLM's TrajectoryGroup."""
    whole = episode(*TURNS)
    whole["trajectories"].append(whole["trajectories"][0] | {"name": "judge", "uid": "other"})
    result = rows_of(RLLM, written(tmp_path, whole))
    assert result.column("group_id") == ["task-7:solver", "task-7:judge"]


def test_advantages_of_steps_and_of_tokens(tmp_path):
    steps = [TURNS[0] | {"advantage": 0.5}, TURNS[1] | {"advantage": [-0.25]}]
    result = rows_of(RLLM, written(tmp_path, episode(*steps)))
    assert result.column("advantages") == [[0.5, 0.5, 0.0, -0.25]]
    steps[1] |= {"advantage": [1.0, 2.0]}
    text = refusal(RLLM, written(tmp_path, episode(*steps)))
    assert "trajectory 0, step 1: `advantage` has 2 values, `response_ids` has 1" in text


def test_weights_that_change_within_a_row_are_unknown(tmp_path):
    result = rows_of(RLLM, written(tmp_path, episode(TURNS[0], TURNS[1] | {"weight_version": 4})))
    assert "policy_version" not in result.rows[0]
    assert result.changes["turns of one row differ in policy_version: it is unknown"] == 1


def test_rewards_of_steps(tmp_path):
    result = rows_of(RLLM, written(tmp_path, episode(*TURNS, reward=None)))
    assert result.column("reward") == [0.25]
    assert LAST_REWARD in result.changes


def test_missing_fields_of_steps(tmp_path):
    steps = [step([1], [2], []), step([], [], [])]
    result = rows_of(RLLM, written(tmp_path, episode(*steps)))
    assert result.rows[0]["response_ids"] == [2]
    assert "rollout_log_probs" not in result.rows[0]
    assert result.changes == {WITHOUT_IDS: 1}


def test_the_episode_logger_writes_text_alone(tmp_path):
    """The fields of `EpisodeLogger.log_episode`: no ids and no log-probs, but with a step."""
    kept = ("observation", "thought", "action", "reward", "done", "model_response")
    text = {name: TURNS[0][name] for name in kept} | {"chat_completions": [], "timing": {}}
    logged = {
        "training_step": 4,
        "epoch": 0,
        "episode_id": "task-7:2",
        "session_id": None,
        "task": {},
        "task_hash": "0",
        "is_correct": True,
        "termination_reason": "env_done",
        "metrics": {},
        "metadata": {},
        "timing": {},
        "trajectories": [{"name": "solver", "uid": "u", "reward": 1.0, "steps": [text]}],
    }
    file = tmp_path / "train_step_4_epoch_0" / "episode_hash0_idtask-7_2.json"
    file.parent.mkdir()
    file.write_text(json.dumps(logged, indent=2) + "\n")
    assert refusal(RLLM, file).endswith("episodes of rLLM, and no step has response_ids")
    logged["trajectories"][0]["steps"] = [text | TURNS[0]]  # a modified logger that keeps them
    file.write_text(json.dumps(logged))
    (row,) = rows_of(RLLM, file).rows
    assert (row["step"], row["group_id"]) == (4, "task-7:solver")


@pytest.mark.parametrize(
    ("bad", "output"),
    [
        (step([1], [2], [-0.5, -0.5]), "step 0: `logprobs` has 2 values, `response_ids` has 1"),
        (step([1], [], [-0.5]), "step 0: `logprobs` has 1 values, `response_ids` has 0"),
        (step([1], ["2"], [-0.5]), "`trajectories[0].steps[0].response_ids[0]`: expected int"),
        (step([{"image": 1}], [2], [-0.5]), "`trajectories[0].steps[0].prompt_ids[0]`"),
        (step([1], [2], "x"), "`trajectories[0].steps[0].logprobs`: expected array"),
    ],
)
def test_damaged_steps_are_refused_with_their_place(tmp_path, bad, output):
    text = refusal(RLLM, written(tmp_path, episode(*TURNS), episode(bad)))
    assert "episodes.jsonl, line 2" in text
    assert output in text


def test_nan_log_probs_are_kept_for_the_diagnosis(tmp_path):
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(episode(step([1], [2], [math.nan]))) + "\n")
    ((value,),) = rows_of(RLLM, file).column("rollout_log_probs")
    assert math.isnan(value)
