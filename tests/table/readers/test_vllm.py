"""Responses of vLLM: completions and chats, ids as lists or as text, echo, wrappers of requests."""

import base64
import io
import json

import numpy as np
import pytest

from rcdiag.table.readers.vllm import VLLM
from tests.table.readers.rows_of import refusal, rows_of, write_lines

PROMPT = [11, 12, 13]


def completion(choices, **fields):
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6},
        "kv_transfer_params": None,
    } | fields


def choice(index, tokens, log_probs, **fields):
    return {
        "index": index,
        "text": "...",
        "logprobs": {
            "text_offset": [0] * len(tokens),
            "token_logprobs": log_probs,
            "tokens": [f"t{token}" for token in tokens],
            "top_logprobs": [
                {f"t{token}": value} for token, value in zip(tokens, log_probs, strict=True)
            ],
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": tokens,
        "prompt_token_ids": PROMPT,
        "prompt_logprobs": [None]
        + [{"12": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}}] * 2,
    } | fields


def chat(choices, **fields):
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": choices,
        "usage": {"prompt_tokens": 3},
        "prompt_token_ids": PROMPT,
        "prompt_logprobs": None,
    } | fields


def chat_choice(index, tokens, log_probs, **fields):
    return {
        "index": index,
        "message": {"role": "assistant", "content": "...", "tool_calls": []},
        "logprobs": {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": [1], "top_logprobs": []}
                for token, value in zip(tokens, log_probs, strict=True)
            ]
        },
        "finish_reason": "length",
        "token_ids": tokens,
    } | fields


def test_a_row_for_each_choice_of_a_completion(tmp_path):
    response = completion([choice(0, [4, 5], [-0.5, -0.25]), choice(1, [6], [-1.5])])
    result = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [response]))
    common = {"prompt_ids": PROMPT, "group_id": "cmpl-1", "finish_reason": "stop"}
    assert result.rows == [
        {"response_ids": [4, 5], "rollout_log_probs": [-0.5, -0.25]} | common,
        {"response_ids": [6], "rollout_log_probs": [-1.5]} | common,
    ]
    assert result.numbers == [1, 1]


def test_a_chat_has_its_prompt_on_the_response(tmp_path):
    response = chat([chat_choice(0, [4, 5], [-0.5, -9999.0])])
    result = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [response]))
    assert result.rows == [
        {
            "prompt_ids": PROMPT,
            "response_ids": [4, 5],
            "rollout_log_probs": [-0.5, -9999.0],
            "group_id": "chatcmpl-1",
            "finish_reason": "length",
        }
    ]


def test_ids_returned_as_tokens_are_read(tmp_path):
    response = chat([chat_choice(0, [4, 5], [-0.5, -0.25], token_ids=None)], prompt_token_ids=None)
    row = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [response])).rows[0]
    assert row["response_ids"] == [4, 5]
    assert "prompt_ids" not in row


def test_ids_beside_log_probs_of_other_ids_are_refused(tmp_path):
    response = chat([chat_choice(0, [4, 5], [-0.5, -0.25], token_ids=[4, 6])])
    error = refusal(VLLM, write_lines(tmp_path / "r.jsonl", [response]))
    assert "line 1, choice 0: token 1 is 6 in `token_ids` and `token_id:5`" in error


def in_base64(array):
    content = io.BytesIO()
    np.save(content, array)
    return base64.b64encode(content.getvalue()).decode()


@pytest.mark.parametrize("left_out", [0, 2])
def test_experts_of_the_response_follow_those_of_the_prompt(tmp_path, left_out):
    experts = np.arange(1, 17).reshape(4, 2, 2).astype(np.uint8)  # 3 + 2 tokens, but the last
    packed = in_base64(experts[left_out:])
    response = chat([chat_choice(0, [4, 5], [-0.5, -0.25], routed_experts=packed)])
    (row,) = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [response])).rows
    assert row["rollout_routed_experts"][0] == [13, 14, 15, 16]
    assert len(row["rollout_routed_experts"]) == 2


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("no base64", "not an array in base64"),
        (in_base64(np.zeros((9, 2, 2), np.uint8)), "has the shape"),
        (in_base64(np.zeros(4, np.uint8)), "is not an array of experts"),
    ],
)
def test_experts_that_do_not_fit_are_refused(tmp_path, packed, message):
    response = chat([chat_choice(0, [4, 5], [-0.5, -0.25], routed_experts=packed)])
    error = refusal(VLLM, write_lines(tmp_path / "r.jsonl", [response]))
    assert message in error


def test_text_alone_is_refused(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [completion([choice(0, [4], [-0.5], token_ids=None)])])
    assert "r.jsonl, line 1, choice 0: no token ids" in refusal(VLLM, file)


def test_echo_puts_the_prompt_before_the_log_probs_but_not_before_the_ids(tmp_path):
    echoed = choice(0, [*PROMPT, 4, 5], [None, -3.0, -2.0, -0.5, -0.25], token_ids=[4, 5])
    result = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [completion([echoed])]))
    assert result.rows[0]["rollout_log_probs"] == [-0.5, -0.25]
    assert result.rows[0]["prompt_ids"] == PROMPT
    assert list(result.changes.values()) == [1]


@pytest.mark.parametrize("prompt", [PROMPT, None])
def test_echo_with_ids_as_tokens(tmp_path, prompt):
    echoed = choice(0, [*PROMPT, 4, 5], [None, -3.0, -2.0, -0.5, -0.25], token_ids=None)
    echoed["logprobs"]["tokens"] = [f"token_id:{token}" for token in [*PROMPT, 4, 5]]
    echoed["prompt_token_ids"] = prompt
    row = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [completion([echoed])])).rows[0]
    assert row["prompt_ids"] == PROMPT
    assert row["response_ids"] == [4, 5]
    assert row["rollout_log_probs"] == [-0.5, -0.25]


def test_several_prompts_of_one_request_are_several_groups(tmp_path):
    choices = [choice(i, [4], [-0.5], prompt_token_ids=[1 + i // 2]) for i in range(4)]
    result = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [completion(choices)]))
    assert result.column("group_id") == ["cmpl-1/0", "cmpl-1/0", "cmpl-1/1", "cmpl-1/1"]


def test_a_group_size_given_by_the_user_replaces_groups_of_single_choices(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [completion([choice(0, [4], [-0.5])])])
    assert "group_id" not in rows_of(VLLM, file, group_size=2).rows[0]


REQUEST = {
    "model": "m",
    "temperature": 0.7,
    "top_p": 0.9,
    "extra_body": {"top_k": 20, "min_p": 0.1},
}


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda response: {"request": REQUEST, "response": response},
        lambda response: {"body": REQUEST, "response": response, "custom_id": "a"},
        lambda response: {"id": 7, "request": REQUEST, "response": response},
        lambda response: {
            "id": "batch_1",
            "custom_id": "a",
            "response": {"status_code": 200, "request_id": "b", "body": response},
            "error": None,
            "request": {"custom_id": "a", "method": "POST", "url": "/v1", "body": REQUEST},
        },
    ],
)
def test_sampling_parameters_come_from_the_request_beside(tmp_path, wrapped):
    response = completion([choice(0, [4], [-0.5])])
    row = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [wrapped(response)])).rows[0]
    assert row["group_id"] == "cmpl-1"
    assert {name: row[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
    }


def test_no_temperature_is_assumed(tmp_path):
    wrapped = {"request": {"model": "m"}, "response": completion([choice(0, [4], [-0.5])])}
    assert "temperature" not in rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [wrapped])).rows[0]


def test_requests_that_failed_and_empty_choices_are_left_out_with_a_count(tmp_path):
    lines = [
        {"custom_id": "a", "response": {"status_code": 400, "body": {"error": {"message": "x"}}}},
        {"object": "error", "message": "x"},
        {"custom_id": "b", "response": None, "error": {"code": "expired"}},
        completion([choice(0, [], []), choice(1, [4], [-0.5])]),
    ]
    file = write_lines(tmp_path / "r.jsonl", lines[-1:] + lines)
    result = rows_of(VLLM, file)
    assert result.numbers == [1, 5]
    assert sorted(result.changes.values()) == [2, 3]
    for first in lines[:3]:
        file = write_lines(tmp_path / "r.jsonl", [first, *lines[3:]])
        assert rows_of(VLLM, file).numbers == [2]


def test_a_response_saved_alone_over_several_lines(tmp_path):
    file = tmp_path / "response.json"
    file.write_text(json.dumps(chat([chat_choice(0, [4], [-0.5])]), indent=2))
    assert rows_of(VLLM, file).column("response_ids") == [[4]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": [4, 5, 6]}, "`logprobs` has 2 values, `token_ids` has 3"),
        ({"token_ids": [4]}, "`logprobs` has 2 values, `token_ids` has 1"),
        ({"token_ids": [4, 2**31]}, "`choices[0].token_ids[1]`: expected int <= 2147483647"),
        ({"token_ids": [4, None]}, "`choices[0].token_ids[1]`: expected int, got null"),
        ({"logprobs": "none"}, "`choices[0].logprobs`: expected object"),
        ({"finish_reason": 3}, "`choices[0].finish_reason`: expected str"),
    ],
)
def test_broken_choices_are_refused(tmp_path, fields, message):
    file = write_lines(
        tmp_path / "r.jsonl", [completion([choice(0, [4, 5], [-0.5, -0.25], **fields)])]
    )
    assert message in refusal(VLLM, file)


def test_a_null_inside_a_response_is_refused(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [completion([choice(0, [4, 5], [-0.5, None])])])
    assert "line 1, choice 0: the log-prob of token 1 of the response is null" in refusal(
        VLLM, file
    )


def test_a_token_id_beyond_any_vocabulary(tmp_path):
    broken = chat_choice(0, [4], [-0.5], token_ids=None)
    broken["logprobs"]["content"][0]["token"] = "token_id:4000000000"
    file = write_lines(tmp_path / "r.jsonl", [chat([broken])])
    assert "token id 4000000000" in refusal(VLLM, file)


def test_streamed_chunks_and_other_objects_are_refused(tmp_path):
    chunk = chat([chat_choice(0, [4], [-0.5])], object="chat.completion.chunk")
    assert "a chunk of a streamed response" in refusal(
        VLLM, write_lines(tmp_path / "a.jsonl", [chunk])
    )
    file = write_lines(tmp_path / "b.jsonl", [chat([chat_choice(0, [4], [-0.5])]), {"x": 1}])
    assert "line 2: no `choices`" in refusal(VLLM, file)


def test_a_chat_of_sglang_has_its_ids_on_the_choices(tmp_path):
    """SGLang 0.5.23 answers a request with `return_token_ids` so."""
    made = chat_choice(0, [4, 5], [-0.5, -0.25])
    del made["token_ids"]
    for token, name in zip(made["logprobs"]["content"], ("a", "b"), strict=True):
        token["token"] = name
    made |= {"response_token_ids": [4, 5], "prompt_token_ids": PROMPT, "matched_stop": None}
    response = chat([made])
    del response["prompt_token_ids"], response["prompt_logprobs"]
    (row,) = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [response])).rows
    assert (row["prompt_ids"], row["response_ids"]) == (PROMPT, [4, 5])
    assert row["rollout_log_probs"] == [-0.5, -0.25]


def test_the_sampling_mask_of_generate_is_kept_ids(tmp_path):
    """`/inference/v1/generate` of a server with `--return-sampling-mask`, since vLLM 0.28."""
    chosen = chat_choice(0, [4, 5], [-0.5, -0.25], sampling_mask=[[187, 4, 512], [5]])
    (row,) = rows_of(VLLM, write_lines(tmp_path / "r.jsonl", [chat([chosen])])).rows
    assert row["rollout_kept_ids"] == [[187, 4, 512], [5]]
    wrong = chat_choice(0, [4, 5], [-0.5, -0.25], sampling_mask=[[4]])
    assert "`sampling_mask` has 1 values, `token_ids` has 2" in refusal(
        VLLM, write_lines(tmp_path / "w.jsonl", [chat([wrong])])
    )
