"""If a batch does not fit in memory, smaller ones are tried."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rcdiag.engines.hf.engine import HfEngine
from rcdiag.engines.hf.model import body_and_head
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.scored_by import NOTE
from rcdiag.errors import RcdiagError
from tests.engines.engine_here import EngineHere
from tests.engines.test_hf import rows_of

pytestmark = pytest.mark.engine


class SmallMemory:
    """A model body that fits a number of tokens, padding included."""

    def __init__(self, body, tokens: int, error: Exception) -> None:
        self.body, self.tokens, self.error = body, tokens, error
        self.tried: list[int] = []

    def __call__(self, *, input_ids: torch.Tensor, **options):
        self.tried.append(input_ids.numel())
        if input_ids.numel() > self.tokens:
            raise self.error
        return self.body(input_ids=input_ids, **options)


GPU = torch.OutOfMemoryError("CUDA out of memory.")
CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...")


@pytest.mark.parametrize("error", [GPU, CPU])
@pytest.mark.parametrize("room", [256, 300, 1000, 1500])
def test_smaller_batches_score_what_large_ones_do(room, error, qwen3, table, expected):
    engine = HfEngine(parse_policy("p=hf:float32,batch_tokens=2000", str(qwen3)))
    engine.body = body = SmallMemory(engine.body, room, error)
    done: list[int] = []
    rows = rows_of(table)
    scores = engine.score(rows, done.append).log_probs
    np.testing.assert_allclose(scores, np.concatenate(expected["log_probs"]), atol=1e-5)
    lengths = rows.prompt_ids.lengths + rows.response_ids.lengths
    assert sum(done) == lengths[rows.response_ids.lengths > 0].sum()
    # A size that did not fit is not tried again: each attempt is at most half of the last.
    failed = [tokens for tokens in body.tried if tokens > room]
    assert failed
    assert all(2 * after <= before for before, after in pairwise(failed))
    about = engine.provenance()
    assert about["batch_tokens"] == engine.batch_tokens < 2000
    assert f"{failed[0]:,} tokens did not fit" in about[NOTE]
    assert f"{engine.batch_tokens:,} at most" in about[NOTE]
    assert f"batch_tokens={engine.batch_tokens} in the policy" in about[NOTE]


def test_a_run_says_that_batches_became_smaller(qwen3, table, tmp_path, monkeypatch, rcdiag):
    def small(model, head_dtype):
        body, to_logits = body_and_head(model, head_dtype)
        return SmallMemory(body, 300, GPU), to_logits

    monkeypatch.setattr("rcdiag.engines.hf.engine.body_and_head", small)
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
    pair = ("--policy", "old=hf:float32", "--policy", "rollout=hf:float32,batch_tokens=100")
    run = rcdiag("score", table, "--model", qwen3, *pair, "-o", tmp_path / "out.parquet")
    assert run.code == 0, run.err
    assert "old: a batch of 768 tokens did not fit into memory; later ones had 256 at" in run.err
    assert "rollout: a batch" not in run.err
    about = json.loads(pq.read_schema(tmp_path / "out.parquet").metadata[b"rcdiag"])["policies"]
    assert {name: one["batch_tokens"] for name, one in about.items()} == {
        "old": 256,
        "rollout": 100,
    }


def test_a_row_that_does_not_fit_alone_is_refused(qwen3, table):
    engine = HfEngine(parse_policy("p=hf:float32", str(qwen3)))
    engine.body = SmallMemory(engine.body, 255, GPU)
    with pytest.raises(RcdiagError, match="out of memory on cpu, at 1 row of 256 tokens") as caught:
        engine.score(rows_of(table), lambda tokens: None)
    assert "gpus=2" in caught.value.hint
    assert "batch_tokens= does not help" in caught.value.hint


@pytest.mark.parametrize("error", [GPU, CPU])
@pytest.mark.parametrize("step", ["load_model", "body_and_head", "check_head"])
def test_a_model_that_does_not_fit_is_refused_with_the_way_out(step, error, qwen3, monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(f"rcdiag.engines.hf.engine.{step}", fails)
    with pytest.raises(RcdiagError, match="policy `p`: out of memory on cpu, while the") as caught:
        HfEngine(parse_policy("p=hf:float32", str(qwen3)))
    assert "a lower dtype" in caught.value.hint


def test_another_error_of_the_head_check_stays_what_it_is(qwen3, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a size mismatch")

    monkeypatch.setattr("rcdiag.engines.hf.engine.check_head", fails)
    with pytest.raises(RuntimeError, match="a size mismatch"):
        HfEngine(parse_policy("p=hf:float32", str(qwen3)))


def test_other_errors_are_raised_unchanged(qwen3, table):
    engine = HfEngine(parse_policy("p=hf:float32", str(qwen3)))
    engine.body = SmallMemory(engine.body, 0, RuntimeError("a size mismatch"))
    with pytest.raises(RuntimeError, match="a size mismatch"):
        engine.score(rows_of(table), lambda tokens: None)


def test_an_error_of_the_real_allocator_is_recognised(qwen3, table):
    """No machine has 2^60 bytes."""
    engine = HfEngine(parse_policy("p=hf:float32,batch_tokens=600", str(qwen3)))
    engine.to_logits = lambda hidden: torch.empty(1 << 60, dtype=torch.int8)
    with pytest.raises(RcdiagError, match="1 row of"):
        engine.score(rows_of(table), lambda tokens: None)
