"""Responses of OpenAI-compatible servers, as dicts and as objects with `model_dump`."""

from __future__ import annotations

from typing import Any

import pytest

import rcdiag
from rcdiag import RcdiagError, Recorder
from rcdiag.recorders.openai import columns_of


def completion(identity: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": identity, "object": "text_completion", "choices": choices}


def choice(tokens: list[int], log_probs: list[float] | None, **more: Any) -> dict[str, Any]:
    names = [f"token_id:{token}" for token in tokens]
    return {
        "index": 0,
        "text": "x",
        "finish_reason": "stop",
        "prompt_token_ids": [7, 8],
        "token_ids": tokens,
        "logprobs": log_probs and {"tokens": names, "token_logprobs": log_probs},
        **more,
    }


CHAT = {
    "id": "chat",
    "object": "chat.completion",
    "prompt_token_ids": [5],
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "ab"},
            "token_ids": [1, 2],
            "logprobs": {
                "content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
            },
        }
    ],
}


class Dumped:
    """An object as the `openai` package returns it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def model_dump(self) -> dict[str, Any]:
        return self.content


def test_completions_and_chats_are_rows_of_a_table(tmp_path):
    responses = [
        completion("a", [choice([1, 2], [-0.25, -0.5]), choice([3], [-1.0])]),
        Dumped(CHAT),
    ]
    requests = [
        {"prompt": [7, 8], "temperature": 0.5, "extra_body": {"top_k": 20}},
        {"messages": [], "temperature": 1.0, "top_p": 0.75},
    ]
    with Recorder(tmp_path) as recorder:
        recorder.add(**columns_of(responses, requests), step=3, reward=[1, 0, 1])
    (batch,) = rcdiag.open_table(tmp_path).batches()
    assert batch.table.to_pydict() == {
        "prompt_ids": [[7, 8], [7, 8], [5]],
        "response_ids": [[1, 2], [3], [1, 2]],
        "rollout_log_probs": [[-0.25, -0.5], [-1.0], [-0.5, -1.5]],
        "finish_reason": ["stop", "stop", "length"],
        "group_id": ["a", "a", "chat"],
        "temperature": [0.5, 0.5, 1.0],
        "top_k": [20, 20, None],
        "top_p": [None, None, 0.75],
        "step": [3, 3, 3],
        "reward": [1.0, 0.0, 1.0],
    }


def test_missing_fields_of_a_response_are_absent_columns():
    columns = columns_of([completion("a", [choice([1], None)])])
    assert set(columns) == {"prompt_ids", "response_ids", "finish_reason", "group_id"}


def test_a_request_that_failed_has_no_row():
    responses = [
        {"object": "error", "error": {"code": 500}},
        completion("a", [choice([1], [-1.0])]),
    ]
    assert columns_of(responses)["group_id"] == ["a"]


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ([completion("a", [choice([1], [-1.0, -2.0])])], "response 0, choice 0: "),
        ([completion("a", [choice([-1], [-1.0], token_ids=None)])], "no token ids"),
        ([completion("a", [choice(["x"], [-1.0])])], "response 0: "),  # type: ignore[list-item]
        ([{"answer": 1}], "response 0: no `choices`"),
    ],
)
def test_a_response_that_does_not_fit_is_named(responses, message):
    with pytest.raises(RcdiagError) as caught:
        columns_of(responses)
    assert message in caught.value.message
    assert caught.value.hint


def test_the_numbers_of_requests_and_responses_must_agree():
    with pytest.raises(RcdiagError, match="2 requests for 1 responses"):
        columns_of([CHAT], [{}, {}])
