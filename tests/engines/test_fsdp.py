"""Trainers' mixed precision, computed by torch's FSDP2 in one process on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.engine

IDS = torch.randint(2, 320, (2, 100), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def logits(model, *, autocast: bool = False) -> torch.Tensor:
    """Compute logits as verl's actor does: no cache, under torch.no_grad."""
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with torch.no_grad(), context:
        return model(input_ids=IDS, use_cache=False).logits.float()


@pytest.mark.parametrize("autocast", [False, True], ids=["alone", "under verl's autocast"])
def test_fsdp2_with_bfloat16_is_hf_bfloat16_and_not_autocast(autocast, qwen3, one_process):
    """float32 weights that FSDP2 casts for the forward act as bfloat16 weights."""
    sharded = AutoModelForCausalLM.from_pretrained(qwen3, dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in sharded.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(sharded, mp_policy=policy)
    full = AutoModelForCausalLM.from_pretrained(qwen3, dtype=torch.float32)
    low = AutoModelForCausalLM.from_pretrained(qwen3, dtype=torch.bfloat16)
    found = logits(sharded, autocast=autocast)
    assert torch.equal(found, logits(low))
    assert (logits(full, autocast=True) - found).abs().mean() > 1e-3
