"""The same scores on a CUDA GPU; run by `make test-gpu` where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rcdiag.engines.hf.attention import REPEATED
from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.notation import parse_policy
from rcdiag.errors import RcdiagError
from tests.builders import write_table
from tests.engine_models import SIZES, rcdiag_alone, scored
from tests.engines.test_rows import rows_of

pytestmark = pytest.mark.gpu

POLICIES = {
    "fp32": "hf:float32",
    "bf16": "hf:bfloat16",
    "autocast": "hf:float32,autocast=bfloat16",
    "prefill": "vllm:bfloat16",
    "prefill_eager": "vllm:bfloat16,enforce_eager=true",
    "decode": "vllm:bfloat16,path=decode",
    "decode_eager": "vllm:bfloat16,path=decode,enforce_eager=true",
    "prefill32": "vllm:float32",
    "decode32": "vllm:float32,path=decode",
    "fp8": "vllm:bfloat16,quantization=fp8",
}
LOW = ["bf16", "autocast", "prefill", "prefill_eager", "decode", "decode_eager"]


@pytest.fixture(scope="module")
def score(qwen3, table, tmp_path_factory) -> Callable[[dict[str, str]], Path]:
    """Score the table by policies, two at least; return the path of the output."""

    def run(policies: dict[str, str]) -> Path:
        out = tmp_path_factory.mktemp("gpu") / "scored.parquet"
        options = [
            word for name, what in policies.items() for word in ("--policy", f"{name}={what}")
        ]
        first, second = list(policies)[:2]
        pair = ("--behavior", second, "--target", first)
        ran = rcdiag_alone("score", table, "--model", qwen3, *options, *pair, "-o", out, "--json")
        assert ran.code == 0, ran.err
        return out

    return run


@pytest.fixture(scope="module")
def run(score) -> Path:
    return score(POLICIES)


def about(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(pq.read_schema(path).metadata[b"rcdiag"])["policies"]


@pytest.mark.parametrize("policy", ["fp32", "prefill32", "decode32"])
def test_float32_on_the_gpu_equals_the_plain_forward_on_the_cpu(policy, run, expected):
    """TF32 keeps 10 bits of a factor: it would be off by a hundredth of a nat here and there."""
    np.testing.assert_allclose(
        scored(run, f"{policy}_log_probs"), np.concatenate(expected["log_probs"]), atol=1e-4
    )


@pytest.mark.parametrize("policy", LOW)
def test_bfloat16_is_near_float32(policy, run):
    gap = np.abs(scored(run, f"{policy}_log_probs") - scored(run, "fp32_log_probs"))
    assert 1e-5 < gap.mean() < 0.1


def test_fp8_is_farther_away_than_bfloat16(run):
    exact = scored(run, "fp32_log_probs")
    fp8, bf16 = (np.abs(scored(run, f"{p}_log_probs") - exact).mean() for p in ("fp8", "prefill"))
    assert fp8 > bf16


def test_the_gpu_and_its_kernels_are_named_in_the_metadata(run):
    policies = about(run)
    assert {one["device"] for one in policies.values()} == {torch.cuda.get_device_name()}
    assert not any(one["tf32"] for one in policies.values())
    assert (policies["fp32"]["attention"], policies["bf16"]["attention"]) == (REPEATED, "sdpa")
    for name, what in POLICIES.items():
        if what.startswith("vllm"):
            assert policies[name]["attention"] not in ("none", "engine default")
            eager = policies[name]["engine_options"]["enforce_eager"]
            assert eager is ("enforce_eager" in what), "compiled unless the policy says otherwise"
    assert policies["prefill32"]["environment"]["TRITON_F32_DEFAULT"] == "ieee"


def test_an_adapter_scores_like_that_of_transformers(score, run, adapter):
    out = score({f"lora_{e}": f"{e}:float32,adapter={adapter}" for e in ("hf", "vllm")})
    ours, theirs = (scored(out, f"lora_{engine}_log_probs") for engine in ("vllm", "hf"))
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    assert np.abs(ours - scored(run, "prefill32_log_probs")).max() > 0.1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU: no tensor parallelism")
def test_two_gpus_hold_one_model(score, expected):
    spread = "vllm:float32,tensor_parallel_size=2"
    out = score({"prefill": spread, "decode": f"{spread},path=decode"})
    for policy in ("prefill", "decode"):
        np.testing.assert_allclose(
            scored(out, f"{policy}_log_probs"), np.concatenate(expected["log_probs"]), atol=1e-4
        )


# Long rows in float32: 28 heads, as a 7B model has, over 16 k tokens.

LENGTH = 16_384


@pytest.fixture(scope="module")
def long_model(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4}
    config = Qwen3Config(**{**SIZES, **heads, "max_position_embeddings": LENGTH})
    folder = tmp_path_factory.mktemp("models") / "long"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def long_row(tmp_path_factory):
    ids = np.random.default_rng(0).integers(2, 320, LENGTH).tolist()
    path = tmp_path_factory.mktemp("tables") / "long.parquet"
    write_table(path, prompt_ids=[ids[:1], ids[:1]], response_ids=[ids[1:], ids[1:257]])
    return rows_of(path, 0, 2)


def test_a_long_row_in_float32_makes_no_score_matrix(long_model, long_row):
    """One matrix of 28 heads is 28 GiB here; torch's math kernel holds two and a half."""
    engine = HfEngine(parse_policy("p=hf:float32", str(long_model)))
    torch.cuda.reset_peak_memory_stats()
    scores = engine.score(long_row, lambda tokens: None).log_probs
    assert torch.cuda.max_memory_allocated() < 4 << 30
    # The second row is the beginning of the first.
    np.testing.assert_allclose(scores[:256], scores[-256:], atol=1e-4)


def test_out_of_memory_names_the_batch(long_model, long_row):
    engine = HfEngine(parse_policy("p=hf:float32", str(long_model)))
    filler = torch.empty(torch.cuda.mem_get_info()[0] - (64 << 20), dtype=torch.int8, device="cuda")
    with pytest.raises(RcdiagError, match="batch_tokens=32768") as caught:
        engine.score(long_row, lambda tokens: None)
    assert "batch_tokens=16384" in caught.value.hint
    del filler
