"""Requests and answers of the engine `server`, against the source of the installed vLLM."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from rcdiag.engines.server.served import Served
from rcdiag.engines.server.vllm import CACHE_SETTINGS, CLAMPED, VllmApi

FOUND = importlib.util.find_spec("vllm")
pytestmark = pytest.mark.skipif(FOUND is None, reason="vLLM is not installed")
SERVED = Served(address="http://host", api="vllm", model="m", longest=64, version="0", settings={})


def source(path: str) -> str:
    """Return the source of a vLLM file without the slow import of vLLM."""
    assert FOUND is not None
    assert FOUND.submodule_search_locations
    return (Path(FOUND.submodule_search_locations[0]) / path).read_text()


def fields(owner: str) -> set[str]:
    tree = ast.parse(source("entrypoints/openai/completion/protocol.py"))
    return {
        item.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == owner
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def test_every_key_of_a_request_exists_in_vllm():
    assert set(VllmApi().request(SERVED, [1, 2], 1)) <= fields("CompletionRequest")


def test_every_key_that_is_read_exists_in_vllm():
    assert {"prompt_logprobs", "prompt_token_ids"} <= fields("CompletionResponseChoice")
    assert {"choices", "system_fingerprint"} <= fields("CompletionResponse")


def test_a_request_with_prompt_log_probs_does_not_read_the_prefix_cache():
    text = source("sampling_params.py")
    (found,) = (
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
        and "skip_reading_prefix_cache" in ast.unparse(node.targets[0])
    )
    assert "self.prompt_logprobs is not None" in found


def test_names_of_minus_infinity_speculation_and_the_cache_are_those_of_vllm():
    assert f"logprob = {CLAMPED}" in source("entrypoints/generate/base/serving.py")
    assert '"vllm:spec_decode_num_drafts"' in source("v1/spec_decode/metrics.py")
    assert '"vllm:cache_config_info"' in source("v1/metrics/loggers.py")
    settings = source("config/cache.py")
    assert all(f"    {name}: " in settings for name in CACHE_SETTINGS)
