"""Responses of SGLang's /generate: triples of log-prob, id and text."""

import base64

import numpy as np
import pytest

from rcdiag.table.readers.sglang import KEPT_BY_SLIME, SGLANG
from tests.table.readers.rows_of import refusal, rows_of, write_lines


def response(tokens=(4, 5), log_probs=(-0.5, -0.25), prompt=(1, 2, 3), **meta):
    return {
        "text": "...",
        "output_ids": list(tokens),
        "meta_info": {
            "id": "a1",
            "finish_reason": {"type": "stop", "matched": 5},
            "prompt_tokens": 3,
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            "weight_version": "7",
            "output_token_logprobs": [[r, i, None] for r, i in zip(log_probs, tokens, strict=True)],
            "input_token_logprobs": [
                [None if k == 0 else -1.0, i, None] for k, i in enumerate(prompt)
            ],
            "e2e_latency": 0.5,
        }
        | meta,
    }


ROW = {
    "prompt_ids": [1, 2, 3],
    "response_ids": [4, 5],
    "rollout_log_probs": [-0.5, -0.25],
    "finish_reason": "stop",
    "policy_version": 7,
}


def test_cells(tmp_path):
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response()]))
    assert result.rows == [ROW]
    assert result.changes == {}


@pytest.mark.parametrize("rows", [4, 5])
def test_experts_of_the_response(rows, tmp_path):
    """Three layers of one expert for tokens of prompt and response, with or without the last."""
    experts = np.arange(1, 3 * rows + 1, dtype=np.int32)
    packed = base64.b64encode(experts.tobytes()).decode()
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response(routed_experts=packed)]))
    of_tokens = experts.reshape(rows, 3).tolist()[3:]
    assert result.column("rollout_routed_experts") == [of_tokens + [[]] * (2 - len(of_tokens))]


def test_experts_of_other_tokens_are_refused(tmp_path):
    packed = base64.b64encode(np.zeros(7, np.int32).tobytes()).decode()
    path = write_lines(tmp_path / "r.jsonl", [response(routed_experts=packed)])
    assert "`routed_experts` has 7 numbers; prompt and response have 3 and 2 tokens" in refusal(
        SGLANG, path
    )


def test_experts_from_a_token_of_the_prompt_on(tmp_path):
    """A continued turn requests only the experts after the known tokens, here after two."""
    experts = np.arange(1, 7, dtype=np.int32)  # of the prompt's last token and the first sampled
    packed = base64.b64encode(experts.tobytes()).decode()
    meta = {"routed_experts": packed, "routed_experts_start_len": 2}
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response(**meta)]))
    assert result.column("rollout_routed_experts") == [[[4, 5, 6], []]]
    meta["routed_experts_start_len"] = 4
    path = write_lines(tmp_path / "r.jsonl", [response(**meta)])
    assert "`routed_experts_start_len` is 4; the prompt has 3 tokens" in refusal(SGLANG, path)


@pytest.mark.parametrize("names", KEPT_BY_SLIME)
def test_kept_ids_of_slimes_sglang(names, tmp_path):
    def packed(*numbers):
        return base64.b64encode(np.array(numbers, np.int32).tobytes()).decode()

    meta = dict(zip(names, (packed(4, 9, 5), packed(0, 2, 3)), strict=True))
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response(**meta)]))
    assert result.rows == [{**ROW, "rollout_kept_ids": [[4, 9], [5]]}]
    for wrong, message in (
        (packed(0, 3), f"`{names[1]}` has 2 values for 2 tokens and the end"),
        (packed(0, 2, 2), f"`{names[1]}` does not go from 0 to the 3 ids"),
        ("AAA=", f"`{names[1]}` is not int32 in base64"),
        (None, f"`{names[1]}` is missing"),
    ):
        meta[names[1]] = wrong
        path = write_lines(tmp_path / "r.jsonl", [response(**meta)])
        assert message in refusal(SGLANG, path)


def test_a_batch_is_a_list(tmp_path):
    lines = [[response(), response()], response()]
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", lines))
    assert result.rows == [ROW] * 3
    assert result.numbers == [1, 1, 2]


def test_ids_of_the_prompt_by_request(tmp_path):
    """As `return_prompt_token_ids` of SGLang 0.5.23 gives them."""
    asked = {**response(input_token_logprobs=None), "prompt_token_ids": [1, 2, 3]}
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [asked]))
    assert result.rows == [ROW]
    assert result.changes == {}
    both = {**response(), "prompt_token_ids": [1, 2, 4]}
    assert "`prompt_token_ids` differ from the tokens" in refusal(
        SGLANG, write_lines(tmp_path / "r.jsonl", [both])
    )


def test_a_wrapper_gives_sampling_parameters_and_prompt_ids(tmp_path):
    wrapped = {
        "request": {"input_ids": [8, 9], "sampling_params": {"temperature": 0.8, "top_k": -1}},
        "response": [response(input_token_logprobs=None)],
    }
    row = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [wrapped])).rows[0]
    assert row == ROW | {"prompt_ids": [8, 9], "temperature": 0.8, "top_k": -1}


@pytest.mark.parametrize("part", [[], None, [[None, 3, None]]])
def test_an_incomplete_prompt_is_left_out(tmp_path, part):
    file = write_lines(tmp_path / "r.jsonl", [response(input_token_logprobs=part)])
    result = rows_of(SGLANG, file)
    assert "prompt_ids" not in result.rows[0]
    assert list(result.changes.values()) == [1]


def test_older_versions_have_ids_only_beside_log_probs(tmp_path):
    older = response(weight_version="default", finish_reason={"type": "length", "length": 2})
    del older["output_ids"]
    row = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [older])).rows[0]
    assert row["response_ids"] == [4, 5]
    assert row["finish_reason"] == "length"
    assert "policy_version" not in row


def test_a_response_without_log_probs_keeps_its_ids(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [response(output_token_logprobs=None)])
    row = rows_of(SGLANG, file).rows[0]
    assert row["response_ids"] == [4, 5]
    assert "rollout_log_probs" not in row


def test_empty_responses_are_left_out_with_a_count(tmp_path):
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response((), ()), response()]))
    assert result.numbers == [2]
    assert list(result.changes.values()) == [1]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"output_token_logprobs": [[-0.5, 4, None]]}, "has 1 values, `output_ids` has 2"),
        (
            {"output_token_logprobs": [[-0.5, 4, None], [-0.5, 6, None]]},
            "line 2: token 1 is 5 in `output_ids` and 6 in `output_token_logprobs`",
        ),
        (
            {"output_token_logprobs": [[-0.5, 4, None], [None, 5, None]]},
            "line 2: `output_token_logprobs[1]` has no log-prob",
        ),
        (
            {"output_token_logprobs": [["-0.5", 4, None]]},
            "`meta_info.output_token_logprobs[0][0]`: expected float | null, got str",
        ),
        ({"output_token_logprobs": [[-0.5, 4.5, None]]}, "[0][1]`: expected int, got float"),
        ({"output_token_logprobs": [-0.5]}, "`meta_info.output_token_logprobs[0]`: expected array"),
    ],
)
def test_broken_responses_are_refused(tmp_path, meta, message):
    file = write_lines(tmp_path / "r.jsonl", [response(), response(**meta)])
    assert message in refusal(SGLANG, file)


def test_a_record_without_meta_info(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [response(), {"text": "..."}])
    assert "line 2: no `meta_info`" in refusal(SGLANG, file)


@pytest.mark.parametrize("values", [[-0.4, -0.1], [[-1.1, -0.4], [-0.1]]])
def test_sampling_masks_give_kept_ids_and_log_probs_over_them(tmp_path, values):
    """`return_sampling_mask` gives them for the sampled token, or for every id."""
    masks = {
        "output_token_sampling_mask": [[9, 4], [5]],
        "output_token_sampling_logprobs": values,
    }
    result = rows_of(SGLANG, write_lines(tmp_path / "r.jsonl", [response(**masks)]))
    kept = {"rollout_log_probs": [-0.4, -0.1], "rollout_kept_ids": [[9, 4], [5]]}
    assert result.rows == [ROW | {**kept, "rollout_log_probs": pytest.approx([-0.4, -0.1])}]
    assert [rows for text, rows in result.changes.items() if "over the kept ids" in text] == [1]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"output_token_sampling_mask": [[4]]}, "has 1 values, `output_ids` has 2"),
        (
            {
                "output_token_sampling_mask": [[9, 8], [5]],
                "output_token_sampling_logprobs": [[-1.0, -0.5], [0.0]],
            },
            "should include token 4",
        ),
    ],
)
def test_sampling_masks_of_other_tokens_are_refused(tmp_path, masks, message):
    assert message in refusal(SGLANG, write_lines(tmp_path / "r.jsonl", [response(**masks)]))
