"""The same scores on a CUDA GPU; run by `make test-gpu` where there is one.

Tests record measurements (`seen`), which `tools/gpu.py` writes into its report.
"""

from __future__ import annotations

import json
import subprocess
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
from tests.engine_models import SIZES, rcdiag_alone, reference, scored
from tests.engines.test_quantised import checkpoints
from tests.engines.test_rows import rows_of

__all__ = ["checkpoints"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")

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
    "head32": "vllm:bfloat16,lm_head=float32",
    "overridden": 'vllm:bfloat16,hf_overrides={"initializer_range":0.2,"bos_token_id":1}',
    "uncompiled": 'vllm:bfloat16,compilation_config={"mode":0,"cudagraph_mode":"NONE"}',
}
LOW = ["bf16", "autocast", "prefill", "prefill_eager", "decode", "decode_eager", "uncompiled"]


@pytest.fixture
def seen(record_property) -> Callable[[str, object], None]:
    """Record a measurement for the report."""
    return lambda name, value: record_property(name, str(value))


@pytest.fixture(scope="module")
def base(qwen3, table, tmp_path_factory) -> Path:
    """The table with two transformers policies, to which other policies are compared."""
    out = tmp_path_factory.mktemp("gpu") / "base.parquet"
    return with_policies(table, qwen3, out, {name: POLICIES[name] for name in ("bf16", "fp32")})


def with_policies(table: Path, model: Path, out: Path, policies: dict[str, str]) -> Path:
    """Add policies to the table; the last is compared with `bf16`."""
    options = [word for name, what in policies.items() for word in ("--policy", f"{name}={what}")]
    pair = ("--behavior", "bf16", "--target", [*policies][-1])
    ran = rcdiag_alone("score", table, "--model", model, *options, *pair, "-o", out, "--json")
    assert ran.code == 0, ran.err
    return out


class Scored:
    """Policies, each scored by its own command on first use.

    A policy that cannot be scored fails only the tests that use it.
    """

    def __init__(self, base: Path, model: Path) -> None:
        self.base, self.model = base, model
        self.made: dict[str, Path | AssertionError] = {"bf16": base, "fp32": base}

    def path(self, name: str, what: str | None = None) -> Path:
        if name not in self.made:
            out = self.base.with_name(f"{name}.parquet")
            policy = {name: what or POLICIES[name]}
            try:
                self.made[name] = with_policies(self.base, self.model, out, policy)
            except AssertionError as error:
                self.made[name] = error
        found = self.made[name]
        if isinstance(found, AssertionError):
            raise found
        return found

    def log_probs(self, name: str, what: str | None = None) -> np.ndarray:
        return scored(self.path(name, what), f"{name}_log_probs")

    def about(self, name: str) -> dict[str, Any]:
        return about(self.path(name))[name]

    def gap(self, one: str, other: str) -> np.ndarray:
        """Return the difference of two policies at every token, nats."""
        return np.abs(self.log_probs(one) - self.log_probs(other))


@pytest.fixture(scope="module")
def run(base, qwen3) -> Scored:
    return Scored(base, qwen3)


def about(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(pq.read_schema(path).metadata[b"rcdiag"])["policies"]


@pytest.mark.parametrize("policy", ["fp32", "prefill32", "decode32"])
def test_float32_on_the_gpu_equals_the_plain_forward_on_the_cpu(policy, run, expected, seen):
    """With TF32, which keeps 10 bits, some log-probs would differ by a hundredth of a nat."""
    ours, theirs = run.log_probs(policy), np.concatenate(expected["log_probs"])
    seen(f"{policy}: largest distance from a CPU, nats", f"{np.abs(ours - theirs).max():.1e}")
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("policy", LOW)
def test_bfloat16_is_near_float32(policy, run, seen):
    mean = run.gap(policy, "fp32").mean()
    seen(f"{policy}: mean distance from float32, nats", f"{mean:.1e}")
    assert 1e-5 < mean < 0.1


def test_fp8_is_farther_away_than_bfloat16(run, seen):
    fp8, bf16 = (run.gap(policy, "fp32").mean() for policy in ("fp8", "prefill"))
    seen("fp8 and bfloat16: mean distance from float32, nats", f"{fp8:.1e}, {bf16:.1e}")
    assert fp8 > bf16


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_compiled_and_eager_are_near_each_other(path, run, seen):
    largest = run.gap(path, f"{path}_eager").max()
    seen(f"{path}: largest distance of compiled and eager, nats", f"{largest:.1e}")
    assert largest < 0.5


def test_a_float32_head_has_other_bits_and_is_nearer_to_float32(run, seen):
    wide, low = (run.gap(policy, "fp32").mean() for policy in ("head32", "prefill"))
    seen("head in float32 and bfloat16: mean distance from float32, nats", f"{wide:.1e}, {low:.1e}")
    assert run.gap("head32", "prefill").max() > 0.0
    assert wide < 1.1 * low


def test_overrides_leave_the_models_own_head(run, seen):
    overridden, wide = (run.gap(policy, "prefill").mean() for policy in ("overridden", "head32"))
    seen("overridden, and a float32 head: mean distance from bfloat16, nats", (overridden, wide))
    assert overridden < wide


@pytest.mark.parametrize("policy", POLICIES)
def test_the_gpu_and_its_kernels_are_named_in_the_metadata(policy, run, seen):
    found, what = run.about(policy), POLICIES[policy]
    seen(f"{policy}: attention", found["attention"])
    assert found["device"] == torch.cuda.get_device_name()
    assert not found["tf32"]
    if what.startswith("vllm"):
        assert found["attention"] not in ("none", "engine default")
        eager = found["engine_options"]["enforce_eager"]
        assert eager is ("enforce_eager" in what), "compiled unless the policy says otherwise"
    else:
        assert found["attention"] == (REPEATED if policy == "fp32" else "sdpa")
    if what.startswith("vllm:float32"):
        assert found["environment"]["TRITON_F32_DEFAULT"] == "ieee"


def test_an_adapter_scores_like_that_of_transformers(run, adapter, seen):
    names = {engine: f"lora_{engine}" for engine in ("hf", "vllm")}
    theirs, ours = (
        run.log_probs(name, f"{engine}:float32,adapter={adapter}") for engine, name in names.items()
    )
    largest = np.abs(ours - theirs).max()
    seen("adapter of rank 32: largest distance of vllm and hf, nats", f"{largest:.1e}")
    assert largest < 2e-4
    assert np.abs(ours - run.log_probs("fp32")).max() > 0.1


def test_float8_weights_are_dequantised(checkpoints, table, seen):
    fp8, wide = checkpoints
    engine = HfEngine(parse_policy("p=hf:float32", str(fp8)))
    found = engine.score(rows_of(table, 0, 40), lambda tokens: None).log_probs
    largest = np.abs(found - np.concatenate(reference(wide, table)["log_probs"])).max()
    seen("FP8 made wide: largest distance from its values on a CPU, nats", f"{largest:.1e}")
    seen("quantization in the metadata", engine.provenance()["quantization"])
    assert largest < 1e-4


def test_a_gpu_can_be_named_by_its_uuid(qwen3, table, tmp_path, monkeypatch, seen):
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuid = listed.split("UUID: ")[1].split(")")[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    pair = ("--policy", "old=hf:float32", "--policy", "rollout=hf:bfloat16", "--devices", "0,")
    ran = rcdiag_alone("score", table, "--model", qwen3, *pair, "-o", tmp_path / "out.parquet")
    assert ran.code == 0, ran.err
    seen("scored on", about(tmp_path / "out.parquet")["old"]["device"])


@TWO_GPUS
@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_two_gpus_hold_one_model_of_vllm(path, run, expected, seen):
    found = run.log_probs(f"spread_{path}", f"vllm:float32,tensor_parallel_size=2,path={path}")
    largest = np.abs(found - np.concatenate(expected["log_probs"])).max()
    seen(f"two GPUs, {path}: largest distance from a CPU, nats", f"{largest:.1e}")
    assert largest < 1e-4


@TWO_GPUS
def test_two_gpus_hold_one_model_of_transformers(run, seen):
    found = run.log_probs("spread", "hf:float32,gpus=2")
    largest = np.abs(found - run.log_probs("fp32")).max()
    seen("two GPUs, hf: largest distance from one, nats", f"{largest:.1e}")
    assert largest < 1e-5


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


def test_a_long_row_in_float32_makes_no_score_matrix(long_model, long_row, seen):
    """A score matrix of 28 heads is 28 GiB here; torch's math kernel would hold 2.5 of them."""
    engine = HfEngine(parse_policy("p=hf:float32", str(long_model)))
    torch.cuda.reset_peak_memory_stats()
    scores = engine.score(long_row, lambda tokens: None).log_probs
    peak = torch.cuda.max_memory_allocated()
    seen("a row of 16,384 tokens, 28 heads, float32: peak, GiB", f"{peak / 2**30:.2f}")
    assert peak < 4 << 30
    # The second row is the beginning of the first.
    np.testing.assert_allclose(scores[:256], scores[-256:], atol=1e-4)


@pytest.fixture
def little_memory():
    """Returns a function that leaves the given MiB of GPU memory free."""
    fillers = []

    def leave(free: int) -> None:
        torch.cuda.empty_cache()
        room = torch.cuda.mem_get_info()[0] - (free << 20)
        fillers.append(torch.empty(room, dtype=torch.int8, device="cuda"))

    yield leave
    fillers.clear()
    torch.cuda.empty_cache()


def test_a_row_without_room_is_refused(long_model, long_row, little_memory):
    engine = HfEngine(parse_policy("p=hf:float32", str(long_model)))
    little_memory(64)
    with pytest.raises(RcdiagError, match="at 1 row of 16384 tokens"):
        engine.score(long_row, lambda tokens: None)


def test_batches_become_smaller_where_memory_is_short(long_model, tmp_path, little_memory, seen):
    """32 rows of 1,024 tokens are one batch; half a GiB holds the activations of some."""
    ids = np.random.default_rng(0).integers(2, 320, (32, 1024)).tolist()
    prompts, responses = [row[:1] for row in ids], [row[1:] for row in ids]
    path = tmp_path / "table.parquet"
    write_table(path, prompt_ids=prompts, response_ids=responses)
    rows = rows_of(path, 0, 32)
    engine = HfEngine(parse_policy("p=hf:float32", str(long_model)))
    whole = engine.score(rows, lambda tokens: None).log_probs
    little_memory(400)
    scores = engine.score(rows, lambda tokens: None).log_probs
    seen("batches with 400 MiB free, tokens", engine.batch_tokens)
    assert engine.batch_tokens < 32_768
    np.testing.assert_allclose(scores, whole, atol=1e-4)
