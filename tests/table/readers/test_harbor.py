"""Harbor's results and ATIF trajectories, in the form of harbor 0.26's models."""

import json

import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.readers.atif import ATIF, COPIED, SEVERAL
from rcdiag.table.readers.harbor import HARBOR, REWARDS, WITHOUT_IDS
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.turns import JOINED, SPLIT
from tests.table.readers.rows_of import refusal, rows_of


def chat(*turns, **fields):
    """Return a RolloutDetail: three lists with one list per turn."""
    names = ("prompt_token_ids", "completion_token_ids", "logprobs")
    columns = zip(*turns, strict=True)
    return dict(zip(names, map(list, columns), strict=True)) | fields


def trial(*chats, rewards=None, **fields):
    """Return a TrialResult of one trial."""
    return {
        "schema_version": 1,
        "id": "7d0d8e9e-0000-4000-8000-000000000000",
        "task_name": "hello-world",
        "trial_name": "hello-world__abc",
        "trial_uri": "file:///jobs/hello-world__abc",
        "task_id": {"path": "tasks/hello-world"},
        "source": None,
        "task_checksum": "0",
        "config": {"agent": {"kwargs": {"collect_rollout_details": True}}},
        "agent_info": {"name": "terminus-2", "version": "2.0.0", "model_info": None},
        "agent_result": {"n_input_tokens": 9, "rollout_details": list(chats), "metadata": None},
        "verifier_result": {"rewards": {"reward": 1.0} if rewards is None else rewards},
        "exception_info": None,
        "step_results": None,
    } | fields


def written(folder, record, name="result.json"):
    """Write a file over several lines, as Harbor does."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=4))
    return file


TURNS = (([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 8], [5], [-1.0]))


def test_a_trial(tmp_path):
    result = rows_of(HARBOR, written(tmp_path, trial(chat(*TURNS))))
    assert result.rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 8, 5],
            "response_mask": [1, 1, 0, 1],
            "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0],
            "turn": 0,
            "chat": 0,
            "group_id": "hello-world",
            "trajectory": "hello-world__abc",
            "agent": "terminus-2",
            "reward": 1.0,
        }
    ]
    assert result.changes == {JOINED: 1}


def test_summaries_of_subagents_are_separate_chats(tmp_path):
    """After a summary terminus-2 continues with another history in the same chat."""
    main = chat(*TURNS, ([1, 7], [6], [-2.0]))
    summary = chat(([1, 2, 3, 4, 9], [7], [-0.5]))
    result = rows_of(HARBOR, written(tmp_path, trial(main, summary)))
    assert result.column("chat") == [0, 0, 1]
    assert result.column("turn") == [0, 2, 0]
    assert set(result.column("group_id")) == {"hello-world"}
    assert result.changes[SPLIT] == 1


def test_a_trial_of_several_steps(tmp_path):
    phases = [
        {
            "step_name": name,
            "agent_result": {"rollout_details": [chat(([1, place], [2], [-0.5]))]},
            "verifier_result": {"rewards": {"reward": float(place)}},
        }
        for place, name in enumerate(("write", "test"))
    ]
    line = trial(agent_result=None, verifier_result=None, step_results=phases)
    result = rows_of(HARBOR, written(tmp_path, line))
    assert result.column("phase") == ["write", "test"]
    assert result.column("reward") == [0.0, 1.0]


def test_which_of_several_rewards(tmp_path):
    file = written(tmp_path, trial(chat(*TURNS), rewards={"speed": 0.25, "reward": 0.5}))
    result = rows_of(HARBOR, file)
    assert result.column("reward") == [0.5]
    assert REWARDS.format(name="reward") in result.changes
    assert rows_of(HARBOR, file, reward_key="speed").column("reward") == [0.25]
    assert "the verifier has no reward `pace`" in refusal(HARBOR, file, reward_key="pace")
    table = rcdiag.open_table(str(file), given={"reward_key": "speed"})
    assert next(table.batches(["reward"])).table["reward"].to_pylist() == [0.25]


@pytest.mark.parametrize(
    ("rewards", "reward"), [({}, None), ({"score": 2}, 2.0), ({"a": None}, None)]
)
def test_a_reward_under_any_name(tmp_path, rewards, reward):
    file = written(tmp_path, trial(chat(*TURNS), rewards=rewards))
    assert rows_of(HARBOR, file).column("reward") == [reward]


def test_a_folder_of_jobs(tmp_path):
    """A folder has result and trajectory of every trial: the same calls, to be read once."""
    for place in range(3):
        line = trial(chat(*TURNS), trial_name=f"t{place}")
        written(tmp_path, line, f"job/t{place}/result.json")
        written(tmp_path, trajectory(*TURNS), f"job/t{place}/agent/trajectory.json")
    written(tmp_path, {"id": "x", "n_total_trials": 3, "stats": {}}, "job/result.json")
    with pytest.raises(RcdiagError, match="files of several formats: harbor"):
        rcdiag.open_table(str(tmp_path))
    results = rcdiag.open_table(str(tmp_path), format="harbor")
    assert results.num_rows == 3
    assert results.metadata["conversion"]["changes"][WITHOUT_IDS] == 1
    assert rcdiag.open_table(str(tmp_path), format="atif").num_rows == 3


def test_results_without_details_are_refused(tmp_path):
    files = [written(tmp_path, trial(), f"{place}/result.json") for place in range(2)]
    text = refusal(HARBOR, *files)
    assert " and 1 more: results of Harbor's trials" in text
    nothing = trial(agent_result={"rollout_details": None})
    assert "none has rollout_details" in refusal(HARBOR, written(tmp_path, nothing))


@pytest.mark.parametrize(
    ("detail", "output"),
    [
        (chat(*TURNS, logprobs=[[-1.0]]), "`logprobs` has 1 turns, `completion_token_ids` has 2"),
        (chat(*TURNS, prompt_token_ids=[[1]]), "`prompt_token_ids` has 1 turns"),
        (
            chat(*TURNS, logprobs=[[-0.5, -0.5], [-0.5, -0.5]]),
            "rollout_details 1, turn 1: `logprobs` has 2 values, `completion_token_ids` has 1",
        ),
        (chat(([1], [2], [None])), "rollout_details[1].logprobs[0][0]`: expected float"),
        (chat(([1], "2", [-0.5])), "rollout_details[1].completion_token_ids[0]`: expected array"),
    ],
)
def test_damaged_chats_are_refused_with_turn_and_place(tmp_path, detail, output):
    text = refusal(HARBOR, written(tmp_path, trial(chat(*TURNS), detail)))
    assert "result.json, line 1" in text
    assert output in text


def test_a_chat_without_log_probs(tmp_path):
    detail = {name: chat(*TURNS)[name] for name in ("prompt_token_ids", "completion_token_ids")}
    (row,) = rows_of(HARBOR, written(tmp_path, {"rollout_details": [detail]})).rows
    assert row["response_ids"] == [3, 4, 8, 5]
    assert "rollout_log_probs" not in row


def step(number, source="agent", turn=None, **fields):
    metrics = {"prompt_tokens": 9, "completion_tokens": 2}
    if turn is not None:
        names = ("prompt_token_ids", "completion_token_ids", "logprobs")
        metrics |= dict(zip(names, turn, strict=True))
    out = {"step_id": number, "source": source, "message": "x"}
    return out | ({"metrics": metrics} if source == "agent" else {}) | fields


def trajectory(*turns, **fields):
    steps = [step(1, "user"), *(step(place, turn=turn) for place, turn in enumerate(turns, 2))]
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "session",
        "agent": {"name": "terminus-2", "version": "2.0.0"},
        "steps": steps,
        "final_metrics": {"total_prompt_tokens": 9},
    } | fields


def test_a_trajectory(tmp_path):
    result = rows_of(ATIF, written(tmp_path, trajectory(*TURNS), "trajectory.json"))
    (row,) = result.rows
    assert len(row.pop("group_id")) == 16
    assert row == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 8, 5],
        "response_mask": [1, 1, 0, 1],
        "rollout_log_probs": [-0.5, -0.25, 0.0, -1.0],
        "turn": 0,
        "trajectory": "session",
        "agent": "terminus-2",
    }


def test_result_and_trajectory_give_the_same_tokens(tmp_path):
    turns = (*TURNS, ([1, 7], [6], [-2.0]), ([1, 7, 6, 2], [3], [-0.125]))
    kept = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "turn")
    one = rows_of(HARBOR, written(tmp_path, trial(chat(*turns))))
    other = rows_of(ATIF, written(tmp_path, trajectory(*turns), "trajectory.json"))
    assert [{name: row[name] for name in kept} for row in one.rows] == [
        {name: row[name] for name in kept} for row in other.rows
    ]


def test_steps_without_a_model_call(tmp_path):
    line = trajectory(*TURNS)
    line["steps"] = [
        step(1, turn=TURNS[0], is_copied_context=True),
        step(2, turn=TURNS[0], llm_call_count=2),
        step(3, turn=TURNS[1], llm_call_count=1),
        step(4),
    ]
    result = rows_of(ATIF, written(tmp_path, line, "trajectory.json"))
    assert result.column("response_ids") == [[5]]
    assert result.changes == {
        COPIED: 1,
        SEVERAL: 1,
        "group_id: trajectories with equal first prompts are a prompt group": 0,
    }


def test_subagents_of_a_trajectory(tmp_path):
    inner = trajectory(([5], [6], [-0.5]), trajectory_id="inner", agent={"name": "helper"})
    line = trajectory(*TURNS, subagent_trajectories=[inner])
    result = rows_of(ATIF, written(tmp_path, line, "trajectory.json"))
    assert result.column("trajectory") == ["session", "inner"]
    assert result.column("agent") == ["terminus-2", "helper"]


def test_endlessly_nested_subagents_are_refused(tmp_path):
    file = tmp_path / "trajectory.json"
    opened = '{"schema_version": "ATIF-v1.7", "steps": [], "subagent_trajectories": ['
    file.write_text(opened * 5000 + "]}" * 5000)
    assert not ATIF.detect(Peek(file))
    with pytest.raises(RcdiagError, match="nested too deeply"):
        rcdiag.open_table(str(file), format="atif")


def test_trajectories_without_tokens_are_refused(tmp_path):
    text = refusal(ATIF, written(tmp_path, trajectory(), "trajectory.json"))
    assert text.endswith("agent trajectories (ATIF), and no step has token ids")


def test_damaged_steps_are_refused_with_their_place(tmp_path):
    line = trajectory(TURNS[0], ([1], [2, 3], [-0.5]))
    text = refusal(ATIF, written(tmp_path, line, "trajectory.json"))
    assert "line 1, step 2: `logprobs` has 1 values, `completion_token_ids` has 2" in text
