"""Real engines: a tiny table scored with a noise floor, then compared."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.engine_models import make_model, make_table, rcdiag

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> Path:
    """`hf_fp32` by transformers, `vllm_bf16` by vLLM, and that once more in other batches."""
    folder = tmp_path_factory.mktemp("run")
    model, table = make_model(folder / "qwen3", "qwen3"), make_table(folder / "t.parquet", rows=24)
    done = rcdiag(
        *("score", table, "--model", model, "-o", folder / "scored.parquet", "-q"),
        *("--policy", "vllm_bf16=vllm:bfloat16", "--policy", "hf_fp32=hf:float32"),
        *("--behavior", "vllm_bf16", "--target", "hf_fp32", "--noise-floor"),
    )
    assert done.returncode == 0, done.stderr
    return folder / "scored.parquet"


@pytest.fixture(scope="module")
def document(scored) -> dict:
    done = rcdiag("compare", scored, "--behavior", "vllm_bf16", "--target", "hf_fp32", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_repeat_is_the_same_policy_in_other_batches(scored):
    found = json.loads(pq.read_schema(scored).metadata[b"rcdiag"])["policies"]
    one, again = found["vllm_bf16"], found["vllm_bf16_again"]
    assert again["options"] == {**one["options"], "max_num_seqs": 5, "repeat_of": "vllm_bf16"}
    for key in ("backend", "dtype", "model", "weights_fingerprint"):
        assert again[key] == one[key], key


def test_the_repeat_is_the_floor_and_engines_in_other_precision_are_above_it(document):
    assert document["ladder"]["policies"] == ["vllm_bf16", "hf_fp32"]
    floor = document["noise_floor"]
    assert (floor["policy"], floor["repeat"]) == ("vllm_bf16", "vllm_bf16_again")
    pair = document["pairs"]["vllm_bf16->hf_fp32"]
    assert pair["mismatch"]["k2_kl"]["value"] > floor["k2"]["value"] >= 0.0
    assert pair["at_floor"] is False


def test_precision_of_a_tiny_model_is_a_small_mismatch(document):
    """bfloat16 has 8 bits: log-probs of a few nats differ by some hundredths."""
    k3 = document["pairs"]["vllm_bf16->hf_fp32"]["mismatch"]["k3_kl"]["value"]
    assert 1e-7 < k3 < 1e-2


def test_compare_scores_what_is_missing_itself_and_leaves_the_table_alone(scored):
    model = scored.parent / "qwen3"
    done = rcdiag(
        *("compare", scored, "--model", model, "--json"),
        *("--policy", "hf_fp32", "--policy", "hf_bf16=hf:bfloat16"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["policies"]) == found["ladder"]["policies"] == ["hf_fp32", "hf_bf16"]
    assert "hf_bf16_log_probs" not in pq.read_schema(scored).names
    assert found["provenance"]["dump"] == [str(scored)]
