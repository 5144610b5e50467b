"""Requests and answers of the engine `server` against SGLang's own code.

Its modules import CUDA kernels, so its functions are taken out of the published wheel one by one.
"""

from __future__ import annotations

import ast
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rcdiag.engines.server.served import Served
from rcdiag.engines.server.sglang import SglangApi
from tests.engines.served_model import LOG_PROBS, VOCABULARY, expected
from tests.oracle.published import bare_class, functions, module

pytestmark = pytest.mark.oracle

MANAGERS = "sglang/srt/managers/"
SERVED = Served(
    address="http://host", api="sglang", model="m", longest=64, version="0", settings={}
)


def source(path: str) -> ast.Module:
    return module("sglang", "0.5.23", path)


def named(path: str, owner: str) -> ast.ClassDef:
    (found,) = (
        node
        for node in ast.walk(source(path))
        if isinstance(node, ast.ClassDef) and node.name == owner
    )
    return found


def fields(path: str, owner: str) -> set[str]:
    return {
        node.target.id
        for node in named(path, owner).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@pytest.mark.parametrize("adapter", [False, True])
def test_every_key_of_a_request_exists_in_sglang(adapter):
    from msgspec.structs import replace

    body = SglangApi().request(replace(SERVED, adapter=adapter), [1, 2, 3], 2)
    assert set(body) <= fields(MANAGERS + "io_struct.py", "GenerateReqInput")
    parameters = fields("sglang/srt/sampling/sampling_params.py", "SamplingParams")
    assert set(body["sampling_params"]) <= parameters


def sglangs_answer(body: dict[str, Any], cached: int) -> dict[str, Any]:
    """Return the answer of SGLang's own functions to a request, with `cached` tokens cached.

    Logits exist at the computed positions; the last one's log-prob belongs to a token that is
    not in the prompt.
    """
    ids, first = body["input_ids"], body["logprob_start_len"]
    request = SimpleNamespace(
        return_logprob=body["return_logprob"],
        logprob_start_len=first,
        origin_input_ids=ids,
        is_prefill_only=body["sampling_params"]["max_new_tokens"] == 0,
        token_indices_to_pool=None,
        multi_item_delimiter_indices=None,
        logprob=SimpleNamespace(),
        dllm_config=None,
        is_dllm=lambda: False,
    )
    batch = source(MANAGERS + "schedule_batch.py")
    most = bare_class(batch, "Req", ["_compute_max_prefix_len"], {})._compute_max_prefix_len
    prefix = min(cached, most(request, len(ids)))
    start = functions(
        batch, ["compute_extend_logprob_start_len"], {}
    ).compute_extend_logprob_start_len(
        logprob_start_len=first,
        prefix_len=prefix,
        extend_len=len(ids) - prefix,
        full_untruncated_fill_len=len(ids),
    )
    positions = range(prefix + start, len(ids))
    next_tokens = [*ids[1:], 0]
    values = [float(LOG_PROBS[ids[at], next_tokens[at]]) for at in positions]
    processor = bare_class(
        source(MANAGERS + "scheduler_components/logprob_result_processor.py"),
        "SchedulerLogprobResultProcessor",
        ["_process_input_token_logprobs", "_uses_scoring_positions", "_scoring_positions"],
        {
            "MIS_DELIMITER_TOKEN_ID": -1,
            "get_exec": lambda: SimpleNamespace(features=SimpleNamespace(enable_mis=False)),
        },
    )()
    processor.model_config = SimpleNamespace(vocab_size=VOCABULARY + 1)
    processor._process_input_token_logprobs(request, values)
    manager = source(MANAGERS + "tokenizer_manager.py")
    told = bare_class(manager, "TokenizerManager", ["detokenize_logprob_tokens"], {})()
    entries = told.detokenize_logprob_tokens(
        request.logprob.input_token_logprobs_val, request.logprob.input_token_logprobs_idx, False
    )
    about = {"prompt_tokens": len(ids), "input_token_logprobs": entries}
    return json.loads(json.dumps({"text": "", "meta_info": about}))


@pytest.mark.parametrize("start", [1, 2, 5, 8])
@pytest.mark.parametrize("cached", [0, 1, 4, 9])
def test_log_probs_are_read_at_their_own_tokens_with_any_cache(start, cached):
    ids = np.random.default_rng(start).integers(0, VOCABULARY, 9).tolist()
    api = SglangApi()
    answer = sglangs_answer(api.request(SERVED, ids, start), cached)
    found = api.read(SERVED, answer, ids, start)
    assert np.array_equal(np.array(found, np.float32), expected(ids[:start], ids[start:]))


def test_input_log_probs_ignore_the_temperature():
    """If this test fails, rows of other temperatures need no longer be refused."""
    processor = ast.unparse(
        named("sglang/srt/layers/logprob_processor.py", "InputLogprobProcessor")
    )
    assert "log_softmax" in processor
    assert "temperature" not in processor
    assert "input_logprob_temperature" not in fields(MANAGERS + "io_struct.py", "GenerateReqInput")


def test_the_requested_facts_exist():
    server = ast.unparse(source("sglang/srt/entrypoints/http_server.py"))
    for path in (
        "/model_info",
        "/get_model_info",
        "/server_info",
        "/get_server_info",
        "/v1/models",
    ):
        assert f"@app.get('{path}'" in server
    for key in ("model_path", "served_model_name", "weight_version"):
        assert f"'{key}'" in server
    assert "'max_req_input_len'" in ast.unparse(source(MANAGERS + "scheduler.py"))
    manager = ast.unparse(source(MANAGERS + "tokenizer_manager.py"))
    for key in ("prompt_tokens", "weight_version", "input_token_logprobs"):
        assert f"'{key}'" in manager
