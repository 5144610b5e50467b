"""NeMo-Gym's rollouts, in the form of its `nemo_gym/openai_utils.py` at commit 07d6b0d0."""

import base64
import json
import math

import numpy as np
import pytest

import rcdiag
from rcdiag.table.readers.nemo_gym import COPIED, FAILED, MASKED, NEMO_GYM, WITHOUT_IDS
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.turns import JOINED, SPLIT
from tests.table.readers.rows_of import refusal, rows_of, write_lines


def message(prompt, tokens, log_probs, **fields):
    """Return an item of the output that carries a turn's tokens, as the vLLM model server does."""
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": tokens,
        "generation_log_probs": log_probs,
        "id": "msg_1",
        "content": [{"annotations": [], "text": "x", "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    } | fields


def call(prompt, tokens, log_probs):
    return message(prompt, tokens, log_probs, type="function_call", name="f", arguments="{}")


THOUGHT = {"id": "rs_1", "summary": [{"text": "y", "type": "summary_text"}], "type": "reasoning"}
TOOL = {"call_id": "c", "output": "4", "type": "function_call_output", "id": None}


def response(*items, **fields):
    return {
        "id": "resp_1",
        "created_at": 1775583409.0,
        "incomplete_details": None,
        "model": "model",
        "object": "response",
        "output": list(items),
        "temperature": None,
        "top_p": None,
        "usage": {"input_tokens": 2, "output_tokens": 1},
    } | fields


def rollout(*items, task=0, sample=0, temperature=0.7, **fields):
    """Return a line that `ng_collect_rollouts` writes: the request, the response, the reward."""
    return {
        "responses_create_params": {"input": "question", "temperature": temperature, "top_p": 1.0},
        "response": response(*items),
        "reward": 0.5,
        "agent_ref": {"name": "simple_agent"},
        "_ng_task_index": task,
        "_ng_rollout_index": sample,
    } | fields


def written(folder, *lines, name="example_rollouts.jsonl"):
    return write_lines(folder / name, lines)


def test_one_turn(tmp_path):
    lines = [rollout(THOUGHT, message([1, 2], [3, 4], [-0.5, 0.0]), sample=k) for k in range(2)]
    result = rows_of(NEMO_GYM, written(tmp_path, *lines))
    assert result.rows[1] == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4],
        "response_mask": [1, 1],
        "rollout_log_probs": [-0.5, 0.0],
        "temperature": pytest.approx(0.7),
        "top_p": 1.0,
        "reward": 0.5,
        "group_id": "0",
        "trajectory": "0/1",
        "agent": "simple_agent",
        "turn": 0,
    }
    assert result.numbers == [1, 2]
    assert result.changes == {}


def test_turns_that_continue_each_other_are_one_row(tmp_path):
    items = [
        THOUGHT,
        call([1, 2], [3, 4], [-0.5, -0.25]),
        TOOL,
        message([1, 2, 3, 4, 8, 9], [5], [-1.0]),
    ]
    result = rows_of(NEMO_GYM, written(tmp_path, rollout(*items)))
    assert result.column("response_ids") == [[3, 4, 8, 9, 5]]
    assert result.column("response_mask") == [[1, 1, 0, 0, 1]]
    assert result.column("rollout_log_probs") == [[-0.5, -0.25, 0.0, 0.0, -1.0]]
    assert result.changes == {JOINED: 1}


def test_a_template_that_drops_thinking_splits_the_rollout(tmp_path):
    """As in Gym's own round-trip data: the second prompt diverges at the second sampled token."""
    items = [
        call([1, 2], [60, 7, 61, 3, 4], [-0.5] * 5),
        TOOL,
        message([1, 2, 60, 61, 3, 4, 8], [60, 61, 5], [-1.0] * 3),
    ]
    file = written(tmp_path, rollout(*items, task=3))
    result = rows_of(NEMO_GYM, file)
    assert result.column("turn") == [0, 1]
    assert result.column("group_id") == ["3", "3"]
    assert result.column("trajectory") == ["3/0", "3/0"]
    assert result.column("prompt_ids") == [[1, 2], [1, 2, 60, 61, 3, 4, 8]]
    assert result.changes[SPLIT] == 1
    first = next(text for text in result.changes if text.startswith("the first turn"))
    assert "example_rollouts.jsonl, line 1, output 2" in first
    assert "from place 3 on" in first
    header = rcdiag.open_table(str(file)).metadata["conversion"]["changes"]
    assert header == result.changes


def test_a_response_alone_and_the_round_trip_data(tmp_path):
    """`round_trip_test_data.json` of Gym's tests keeps a response under `input`, over lines."""
    alone = response(message([1], [2], [-0.5]), temperature=0.5)
    result = rows_of(NEMO_GYM, written(tmp_path, alone))
    assert result.column("temperature") == [0.5]
    assert "reward" not in result.rows[0]
    file = tmp_path / "round_trip.json"
    file.write_text(json.dumps({"input": alone, "expected_output": {"messages": []}}, indent=1))
    assert rows_of(NEMO_GYM, file).column("response_ids") == [[2]]


def test_the_end_of_the_last_turn(tmp_path):
    line = rollout(call([1], [2], [-0.5]), message([1, 2, 3], [4], [-0.5]))
    line["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    result = rows_of(NEMO_GYM, written(tmp_path, line))
    assert result.column("finish_reason") == ["max_output_tokens"]


def test_flagged_rollouts_are_masked_and_failed_ones_left_out(tmp_path):
    good = message([1], [2], [-0.5])
    lines = [
        rollout(good, mask_sample=True),
        rollout(good, mask_sample=False),
        rollout(good) | {"_ng_failure_class": "judge_failed"},
        {"_ng_task_index": 1, "response": None, "_ng_failure_class": "timeout"},
    ]
    result = rows_of(NEMO_GYM, written(tmp_path, *lines))
    assert result.column("response_mask") == [[0], [1]]
    assert result.changes == {MASKED: 1, FAILED: 2}


def test_padding_of_an_agent_is_not_a_turn(tmp_path):
    """hermes_agent repeats its last turn, or writes one token 0, if it has no last message."""
    turn, nothing = call([1], [2], [-0.5]), message([0], [0], [0.0])
    lines = [rollout(turn, message([1], [2], [-0.5])), rollout(turn, nothing), rollout(nothing)]
    result = rows_of(NEMO_GYM, written(tmp_path, *lines))
    assert result.column("response_ids") == [[2], [2]]
    assert result.changes == {COPIED: 3, WITHOUT_IDS: 1}


def test_missing_fields_of_a_rollout_are_left_out(tmp_path):
    """Gym's bridge to Harbor writes empty lists for missing fields."""
    lines = [rollout(message([1], [2], [])), rollout(message([1], [2], [-0.5]))]
    result = rows_of(NEMO_GYM, written(tmp_path, *lines))
    assert result.column("rollout_log_probs") == [None, [-0.5]]
    assert result.changes == {}


def packed(experts, dtype="int16"):
    """Return experts [tokens, layers, top-k] as NeMo-RL's vLLM server writes them.

    As in `encode_routed_experts` of nemo_rl/utils/routed_experts_codec.py at commit 7ea279ab.
    """
    array = np.array(experts, f"<{dtype[0]}{int(dtype[3:]) // 8}")
    shape = "x".join(map(str, array.shape))
    return f"nrlre1:{dtype}:{shape}:{base64.b64encode(array.tobytes()).decode()}"


PLACEHOLDER = [[0, 1], [0, 1]]  # NeMo-RL's experts of a call's last token, which no engine has read
MISSING = [[-1, -1], [-1, -1]]  # its mark of a token that vLLM did not record


@pytest.mark.parametrize("form", [packed, lambda one: packed(one, "int8"), lambda one: one])
def test_experts_of_two_turns(tmp_path, form):
    """The second call reads the last token of the first, and the tool's token, for the first time.

    Tokens that the first call sampled keep its experts, although the second reads them again.
    """
    one = [[[9, 9], [9, 8]], [[1, 2], [3, 4]], MISSING, PLACEHOLDER]
    two = [*([[7, 6], [7, 5]] for _ in one), [[2, 3], [4, 5]], [[6, 7], [0, 1]], PLACEHOLDER]
    lines = [
        rollout(
            call([1], [2, 3, 4], [-0.5] * 3) | {"routed_experts": form(one)},
            TOOL,
            message([1, 2, 3, 4, 5], [6, 7], [-0.5] * 2, routed_experts=form(two)),
        ),
        rollout(call([1], [2], [-0.5]), message([1, 2, 3], [4], [-0.5])),
    ]
    result = rows_of(NEMO_GYM, written(tmp_path, *lines))
    assert result.column("response_ids") == [[2, 3, 4, 5, 6, 7], [2, 3, 4]]
    assert result.column("rollout_routed_experts") == [
        [[1, 2, 3, 4], [], [7, 6, 7, 5], [2, 3, 4, 5], [6, 7, 0, 1], []],
        None,
    ]


@pytest.mark.parametrize(
    ("experts", "words"),
    [
        (packed([[[0, 1]]]), "has 1 values; the sample has 3 tokens"),
        (packed([[[0, 1]]] * 3).replace("nrlre1", "nrlre2"), "it begins with 'nrlre2:int16:3x1"),
        (packed([[[0, 1]]] * 3)[:-4], "is not an array"),
        ("nrlre1:int16:3x1", "is not an array"),
        ([[[0, 1]], [[0]], [[0, 1]]], "is not an array"),
        (packed([[[0, -1]]] * 3), "holds values that are not expert numbers"),
        (packed([[0, 1]] * 3), "is not an array of experts"),
    ],
)
def test_other_experts_are_refused(tmp_path, experts, words):
    lines = [rollout(message([1], [2, 3], [-0.5] * 2, routed_experts=experts))]
    assert words in refusal(NEMO_GYM, written(tmp_path, *lines))


def test_turns_with_experts_of_other_layers_are_refused(tmp_path):
    turns = [
        call([1], [2], [-0.5]) | {"routed_experts": [[[0, 1]]] * 2},
        message([1, 2], [3], [-0.5], routed_experts=[[[0, 1], [0, 1]]] * 3),
    ]
    text = refusal(NEMO_GYM, written(tmp_path, rollout(*turns)))
    assert "output 1: a token has (2, 2) experts" in text


def test_rows_of_two_models_in_one_file(tmp_path):
    """Their experts are kept as they are; `experts=rollout` refuses those of another model."""
    lines = [
        rollout(message([1], [2, 3], [-0.5] * 2, routed_experts=[[[0, 1]] * layers] * 3))
        for layers in (1, 2)
    ]
    column = rows_of(NEMO_GYM, written(tmp_path, *lines)).column("rollout_routed_experts")
    assert column == [[[0, 1], []], [[0, 1, 0, 1], []]]


def test_agents_that_record_no_tokens(tmp_path):
    empty = rollout(message([], [], []), TOOL)
    result = rows_of(NEMO_GYM, written(tmp_path, empty, rollout(message([1], [2], [-0.5]))))
    assert result.numbers == [2]
    assert result.changes == {WITHOUT_IDS: 1}
    text = refusal(NEMO_GYM, written(tmp_path, empty, rollout(TOOL)))
    assert text.endswith("rollouts of NeMo-Gym, and none of them has token ids")


def test_nan_log_probs_are_kept_for_the_diagnosis(tmp_path):
    file = tmp_path / "rollouts.jsonl"
    file.write_text(json.dumps(rollout(message([1], [2, 3], [math.nan, -math.inf]))) + "\n")
    (values,) = rows_of(NEMO_GYM, file).column("rollout_log_probs")
    assert math.isnan(values[0])
    assert values[1] == -math.inf


@pytest.mark.parametrize(
    ("item", "output"),
    [
        (
            message([1], [2, 3], [-0.5]),
            "`generation_log_probs` has 1 values, `generation_token_ids",
        ),
        (message([1], [], [-0.5]), "`generation_log_probs` has 1 values, `generation_token_ids`"),
        (message([1], [2], [None]), "`response.output[1].generation_log_probs[0]`: expected float"),
        (message([1], ["2"], [-0.5]), "`response.output[1].generation_token_ids[0]`: expected int"),
        (message([1], [2.5], [-0.5]), "expected int"),
        (message([1], [True], [-0.5]), "expected int"),
        (message([2**31], [2], [-0.5]), "`response.output[1].prompt_token_ids[0]`"),
        (message({"a": 1}, [2], [-0.5]), "`response.output[1].prompt_token_ids`: expected array"),
    ],
)
def test_damaged_turns_are_refused_with_line_and_place(tmp_path, item, output):
    text = refusal(NEMO_GYM, written(tmp_path, rollout(TOOL), rollout(TOOL, item)))
    assert "example_rollouts.jsonl, line 2" in text
    assert output in text


def test_damaged_records_are_refused(tmp_path):
    file = written(tmp_path, rollout(message([1], [2], [-0.5])), {"response": {"id": "x"}})
    assert "line 2: no `output`" in refusal(NEMO_GYM, file)
    file.write_text(file.read_text().rpartition("{")[0] + '{"response": {')
    assert "line 2: the last line is cut off" in refusal(NEMO_GYM, file)


def test_inputs_of_rollouts_are_not_a_dump(tmp_path):
    line = {"responses_create_params": {"input": "question"}, "_ng_task_index": 0}
    assert not NEMO_GYM.detect(Peek(written(tmp_path, line)))
