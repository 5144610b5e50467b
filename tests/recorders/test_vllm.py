"""Outputs of vLLM are recorded unchanged: of its own classes, and of a real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import rcdiag
from rcdiag import RcdiagError
from rcdiag.recorders.vllm import columns_of
from tools.docs.commands import ROOT

POLICY = ROOT / "sample_data" / "policy" / "step_8"

GENERATE = """
import json, os, sys
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
import rcdiag
from rcdiag.recorders.vllm import columns_of, facts_of
from vllm import LLM, SamplingParams

policy, dump, out = sys.argv[1:]
llm = LLM(policy, dtype="float32", enforce_eager=True, enable_prefix_caching=False,
          max_model_len=128, logprobs_mode="processed_logprobs", seed=0)
prompts = [{"prompt_token_ids": ids} for ids in ([26, 228, 18], [27, 228, 36, 18])]
several = SamplingParams(n=3, temperature=0.7, top_p=0.9, top_k=50, max_tokens=9, logprobs=0)
greedy = SamplingParams(temperature=0, max_tokens=5, logprobs=2)
with rcdiag.Recorder(dump) as recorder:
    recorder.describe("rollout", **facts_of(llm))
    outputs = llm.generate(prompts, several, use_tqdm=False)
    recorder.add(**columns_of(outputs, several), step=4, reward=range(6))
    recorder.flush()
    more = llm.generate(prompts, [greedy, several], use_tqdm=False)
    recorder.add(**columns_of(more, [greedy, several]), step=5)
    plain = llm.generate(prompts[:1], SamplingParams(max_tokens=2), use_tqdm=False)
    columns = columns_of(plain)
kept = [[c.token_ids, [p[t].logprob for p, t in zip(c.logprobs, c.token_ids)], c.finish_reason]
        for output in [*outputs, *more] for c in output.outputs]
kept = [[list(ids), *rest] for ids, *rest in kept]
json.dump({"kept": kept, "plain": sorted(columns)}, open(out, "w"))
"""


@pytest.mark.slow  # loads vLLM a second time
@pytest.mark.engine
def test_a_real_engine_is_recorded(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-c", GENERATE, str(POLICY), str(tmp_path / "dump"), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    kept = json.loads(out.read_text())["kept"]
    table = rcdiag.open_table(tmp_path / "dump")
    rows = [row for batch in table.batches() for row in batch.table.to_pylist()]
    assert [row["response_ids"] for row in rows] == [ids for ids, _, _ in kept]
    for row, (_, log_probs, reason) in zip(rows, kept, strict=True):
        np.testing.assert_allclose(row["rollout_log_probs"], log_probs, rtol=1e-6)
        assert row["finish_reason"] == reason
    assert [row["step"] for row in rows] == [4] * 6 + [5] * 4
    assert [row["temperature"] for row in rows] == [0.7] * 6 + [None] + [0.7] * 3
    assert [row["top_k"] for row in rows[:6]] == [50] * 6
    assert [row["top_p"] for row in rows[:6]] == [0.9] * 6
    groups = [row["group_id"] for row in rows]
    assert [groups.count(group) for group in groups] == [3] * 6 + [1] + [3] * 3
    facts = table.metadata["policies"]["rollout"]
    assert facts["engine_options"] == {"logprobs_mode": "processed_logprobs"}
    assert (facts["backend"], facts["dtype"]) == ("vllm", "float32")
    # A request that asks for no log-probs has none; single completions are no groups.
    assert json.loads(out.read_text())["plain"] == ["finish_reason", "prompt_ids", "response_ids"]


def completion(tokens: list[int], places: int) -> SimpleNamespace:
    log_probs = [{token: SimpleNamespace(logprob=-1.0)} for token in tokens][:places]
    return SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason="stop")


def output(*completions: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(request_id="4", prompt_token_ids=[1], outputs=list(completions))


def test_log_probs_of_other_tokens_are_refused():
    with pytest.raises(RcdiagError, match="request 4: 1 log-probs for 2 tokens"):
        columns_of([output(completion([5, 6], 1))])


def test_the_numbers_of_parameters_and_requests_must_agree():
    with pytest.raises(RcdiagError, match="2 sampling parameters for 1 requests"):
        columns_of([output(completion([5], 1))], [None, None])


def test_sampling_masks_are_recorded_as_kept_ids():
    """An engine with `return_sampling_mask` returns `vllm.outputs.SamplingMask`."""
    given = completion([5, 6], 2)
    given.sampling_mask = SimpleNamespace(token_ids=[[5, 9], [6]])
    assert columns_of([output(given)])["rollout_kept_ids"] == [[[5, 9], [6]]]
    assert "rollout_kept_ids" not in columns_of([output(completion([5], 1))])


def test_experts_that_the_engine_returns():
    """[tokens but the last, layers, top-k] of prompt and response."""
    experts = np.arange(1, 9, dtype=np.int16).reshape(2, 2, 2)
    made = completion([5, 6], 2)
    made.routed_experts = experts
    columns = columns_of([output(made)])
    assert columns["rollout_routed_experts"][0].tolist() == [experts[1].tolist(), [[0, 0], [0, 0]]]


@pytest.mark.parametrize(("rows", "known"), [(3, True), (2, False), (4, False)])
def test_experts_of_an_unknown_place_are_not_recorded(rows, known):
    """A prompt of four tokens, of which the request leaves out the first two."""
    made = completion([5, 6], 2)
    made.routed_experts = np.arange(4 * rows).reshape(rows, 2, 2)
    given, params = output(made), SimpleNamespace(routed_experts_prompt_start=2)
    given.prompt_token_ids = [1, 2, 3, 4]
    columns = columns_of([given], params)
    assert ("rollout_routed_experts" in columns) is known
