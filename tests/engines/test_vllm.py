"""Real vLLM in its usual processes; all tests share one table that is scored once.

Nightly runs score the same table on every other path of the engine too.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.engine_models import rcdiag_alone, scored

pytestmark = pytest.mark.engine

# A start of vLLM takes 15 seconds to a minute: `make test` has the one of
# tests/test_sample_data.py, `make nightly` has these.
SLOW = pytest.mark.slow
CHUNKED = "max_num_batched_tokens=64,max_num_seqs=16"

# They must change nothing; they would if they restored vLLM's float32 head of pooling models.
OVERRIDES = '{"initializer_range":0.2,"max_position_embeddings":256}'

PLAIN = """
import json, os, sys
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")
import pyarrow.parquet as pq
from vllm import LLM, SamplingParams
model, table, out = sys.argv[1:]
llm = LLM(model, dtype="float32", enforce_eager=True, enable_prefix_caching=False,
          max_model_len=257, skip_tokenizer_init=True)
rows = pq.read_table(table).to_pylist()
params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
prompts = [{"prompt_token_ids": r["prompt_ids"] + r["response_ids"]} for r in rows]
found = []
for row, output in zip(rows, llm.generate(prompts, params, use_tqdm=False)):
    start = len(row["prompt_ids"])
    places = zip(output.prompt_logprobs[start:], row["response_ids"])
    found.append([entry[token].logprob for entry, token in places])
json.dump(found, open(out, "w"))
"""


def with_policies(
    table: Path, model: Path, out: Path, policies: dict[str, str], *more: str
) -> Path:
    """Add policies to the table; returns the path of the new table."""
    options = [part for name, what in policies.items() for part in ("--policy", f"{name}={what}")]
    pair = ("--behavior", "prefill", "--target", "hf", *more)
    outcome = rcdiag_alone("score", table, "--model", model, *options, *pair, "-o", out, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["mismatch"]["log_ratio_abs_max"]["value"] < 1e-4
    return out


@pytest.fixture(scope="module")
def run(qwen3, table, tmp_path_factory) -> Path:
    """The table scored by vLLM's prefill and by transformers."""
    out = tmp_path_factory.mktemp("vllm") / "scored.parquet"
    policies = {"prefill": "vllm:float32,entropy=true,top_k=3", "hf": "hf:float32"}
    return with_policies(table, qwen3, out, policies)


@pytest.fixture(scope="module")
def float32_head(qwen3, tmp_path_factory) -> Path:
    """The checkpoint, whose config.json says that the head is in float32."""
    folder = tmp_path_factory.mktemp("models") / "float32_head"
    shutil.copytree(qwen3, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "head_dtype": "float32"}))
    return folder


@pytest.fixture(scope="module")
def every_path(run, qwen3, float32_head, adapter) -> Path:
    """The table scored on every other engine path, and `bf16` twice for the noise floor."""
    policies = {
        "decode": f"vllm:float32,path=decode,entropy=true,top_k=3,{CHUNKED}",
        "bf16": "vllm:bfloat16",
        "head32": "vllm:bfloat16,lm_head=float32",
        "stated": f"vllm:bfloat16,model={float32_head}",
        "overridden": f"vllm:bfloat16,hf_overrides={OVERRIDES}",
        "lora_vllm": f"vllm:float32,{CHUNKED},adapter={adapter}",
        "lora_hf": f"hf:float32,adapter={adapter}",
    }
    return with_policies(run, qwen3, run.with_name("every.parquet"), policies, "--noise-floor")


PATHS = pytest.mark.parametrize(
    ("policy", "rows"),
    [
        pytest.param("prefill", "run", marks=SLOW),
        pytest.param("decode", "every_path", marks=SLOW),
    ],
    ids=["prefill", "decode"],
)


@pytest.fixture
def rows_of(request) -> Callable[[str], Path]:
    """Return the rows of a fixture's table."""
    return request.getfixturevalue


@PATHS
def test_float32_equals_the_plain_forward_of_transformers(policy, rows, rows_of, expected):
    """At each row's temperature, with one-token prompts and responses, and the longest row."""
    result = scored(rows_of(rows), f"{policy}_log_probs")
    np.testing.assert_allclose(result, np.concatenate(expected["log_probs"]), atol=3e-5)


@PATHS
def test_entropy_and_top_k_are_those_of_the_whole_distribution(policy, rows, rows_of, expected):
    run = rows_of(rows)
    np.testing.assert_allclose(
        scored(run, f"{policy}_entropy"), np.concatenate(expected["entropy"]), atol=5e-5
    )
    column = pq.read_table(run)[f"{policy}_top_ids"].combine_chunks().flatten().flatten()
    ids = np.concatenate([top.indices.numpy().ravel() for top in expected["top"]])
    assert np.array_equal(column.to_numpy(), ids)


@SLOW
def test_scores_equal_plain_prompt_log_probs_at_temperature_one(run, qwen3, table, tmp_path):
    out = tmp_path / "plain.json"
    command = [sys.executable, "-c", PLAIN, str(qwen3), str(table), str(out)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    plain = json.loads(out.read_text())
    rows = pq.read_table(run, columns=["temperature", "prefill_log_probs"]).to_pylist()
    compared = 0
    for row, values in zip(rows, plain, strict=True):
        if row["temperature"] in (None, 1.0):
            np.testing.assert_allclose(row["prefill_log_probs"], values, atol=5e-6)
            compared += len(values)
    assert compared > 300


@SLOW
def test_bfloat16_is_near_float32_but_not_it(every_path):
    gap = np.abs(scored(every_path, "bf16_log_probs") - scored(every_path, "hf_log_probs"))
    assert 1e-5 < gap.mean() < 0.1


@SLOW
def test_overrides_of_the_users_leave_the_models_own_head(every_path):
    plain, wide, other = (
        scored(every_path, f"{p}_log_probs") for p in ("bf16", "head32", "overridden")
    )
    assert np.array_equal(other, plain)
    assert not np.array_equal(wide, plain)


@SLOW
def test_a_head_that_the_checkpoint_states_is_kept_and_named(every_path):
    wide, stated = (scored(every_path, f"{p}_log_probs") for p in ("head32", "stated"))
    assert np.array_equal(stated, wide)
    about = json.loads(pq.read_schema(every_path).metadata[b"rcdiag"])["policies"]
    assert [about[name].get("lm_head") for name in ("bf16", "head32", "stated")] == [
        None,
        "float32",
        "float32",
    ]


@SLOW
def test_an_adapter_scores_as_in_transformers_with_chunked_sequences(every_path):
    ours, theirs = (scored(every_path, f"lora_{engine}_log_probs") for engine in ("vllm", "hf"))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert np.abs(ours - scored(every_path, "prefill_log_probs")).max() > 0.1


@PATHS
def test_how_each_policy_was_scored_is_in_the_metadata(policy, rows, rows_of):
    metadata = json.loads(pq.read_schema(rows_of(rows)).metadata[b"rcdiag"])
    about = metadata["policies"][policy]
    assert about["backend"] == "vllm"
    assert about["path"] == policy
    assert about["dtype"] == "float32"
    assert about["versions"]
    assert about["attention"] == "CPU_ATTN"
    assert about["tf32"] is False
    # Names that vLLM generates per process would make any two engines differ.
    assert set(about["environment"]) == {
        "TRITON_F32_DEFAULT",
        "VLLM_FLOAT32_MATMUL_PRECISION",
        *(["VLLM_USE_V2_MODEL_RUNNER"] if policy == "decode" else []),
    }
    assert about["weights_fingerprint"] == metadata["policies"]["hf"]["weights_fingerprint"]
    assert about["rows_scored_at_temperature_1_because_unknown"] == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param("quantizaton=fp8", "did you mean quantization?", marks=SLOW),
        ("enable_prefix_caching=true", "enable_prefix_caching"),
        ("data_parallel_size=2", "--devices N"),
        ("dtype=bfloat16", "vllm:float32"),
        ('compilation_config={"mode":0,"x', "not JSON"),
        ("path=sideways", "path=sideways"),
        pytest.param("quantization=gptq", "the engine failed", marks=SLOW),  # once it has started
        ("quantization=fp8", "needs a GPU"),
    ],
)
def test_unsupported_options_are_refused(rcdiag, options, words, qwen3, table, tmp_path):
    out = tmp_path / "out.parquet"
    outcome = rcdiag(
        *("score", table, "--model", qwen3, "-o", out, "--behavior", "a", "--target", "b"),
        *("--policy", f"a=vllm:float32,{options}", "--policy", "b=hf:float32"),
    )
    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert not out.exists()


# `compare` on these policies


@pytest.fixture(scope="module")
def compared(every_path) -> dict[str, Any]:
    policies = [word for name in ("bf16", "bf16_again", "hf") for word in ("--policy", name)]
    pair = ("--behavior", "bf16", "--target", "hf")
    outcome = rcdiag_alone("compare", every_path, *policies, *pair, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.document


@SLOW
def test_the_repeat_is_the_same_policy_in_other_batches(every_path):
    result = json.loads(pq.read_schema(every_path).metadata[b"rcdiag"])["policies"]
    one, again = result["bf16"], result["bf16_again"]
    assert again["options"] == {**one["options"], "max_num_seqs": 5, "repeat_of": "bf16"}
    for key in ("backend", "dtype", "model", "weights_fingerprint"):
        assert again[key] == one[key], key


@SLOW
def test_the_repeat_is_the_floor_and_engines_in_other_precision_are_above_it(compared):
    assert compared["ladder"]["policies"] == ["bf16", "hf"]
    floor = compared["noise_floor"]
    assert (floor["policy"], floor["repeat"]) == ("bf16", "bf16_again")
    pair = compared["pairs"]["bf16->hf"]
    assert pair["mismatch"]["k2_kl"]["value"] > floor["k2"]["value"] >= 0.0
    assert pair["at_floor"] is False


@SLOW
def test_precision_of_a_tiny_model_is_a_small_mismatch(compared):
    """bfloat16 has 8 bits: log-probs of a few nats differ by some hundredths."""
    k2 = compared["pairs"]["bf16->hf"]["mismatch"]["k2_kl"]["value"]
    assert 1e-7 < k2 < 1e-2


@SLOW
def test_compare_scores_what_is_missing_itself_and_leaves_the_table_alone(run, qwen3):
    policies = ("--policy", "hf", "--policy", "hf_bf16=hf:bfloat16")
    result = rcdiag_alone("compare", run, "--model", qwen3, "--json", *policies).document
    assert list(result["policies"]) == result["ladder"]["policies"] == ["hf", "hf_bf16"]
    assert "hf_bf16_log_probs" not in pq.read_schema(run).names
    assert result["provenance"]["dump"] == [str(run)]
