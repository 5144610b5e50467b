"""The same scores on a CUDA GPU; run by `make test-gpu` where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.engine_models import rcdiag_alone, scored

pytestmark = pytest.mark.gpu

POLICIES = {
    "fp32": "hf:float32",
    "bf16": "hf:bfloat16",
    "autocast": "hf:float32,autocast=bfloat16",
    "prefill": "vllm:bfloat16",
    "decode": "vllm:bfloat16,path=decode",
    "graphs": "vllm:bfloat16,path=decode,enforce_eager=false",
    "fp8": "vllm:bfloat16,quantization=fp8",
}


@pytest.fixture(scope="module")
def run(qwen3, table, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "scored.parquet"
    options = [part for name, what in POLICIES.items() for part in ("--policy", f"{name}={what}")]
    pair = ("--behavior", "prefill", "--target", "fp32")
    outcome = rcdiag_alone("score", table, "--model", qwen3, *options, *pair, "-o", out, "--json")
    assert outcome.code == 0, outcome.err
    return out


def test_float32_on_the_gpu_equals_the_plain_forward_on_the_cpu(run, expected):
    np.testing.assert_allclose(
        scored(run, "fp32_log_probs"), np.concatenate(expected["log_probs"]), atol=1e-4
    )


@pytest.mark.parametrize("policy", ["bf16", "autocast", "prefill", "decode", "graphs"])
def test_bfloat16_is_near_float32(policy, run):
    gap = np.abs(scored(run, f"{policy}_log_probs") - scored(run, "fp32_log_probs"))
    assert 1e-5 < gap.mean() < 0.1


def test_fp8_is_farther_away_than_bfloat16(run):
    exact = scored(run, "fp32_log_probs")
    fp8, bf16 = (np.abs(scored(run, f"{p}_log_probs") - exact).mean() for p in ("fp8", "prefill"))
    assert fp8 > bf16


def test_the_gpu_is_named_in_the_metadata(run):
    policies = json.loads(pq.read_schema(run).metadata[b"rcdiag"])["policies"]
    assert all(about["device"] != "cpu" for about in policies.values())
