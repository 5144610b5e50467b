"""Score a table by FSDP2 in mixed precision, as a trainer computes it: a program for `command`.

    rcdiag score DUMP -o scored.parquet --policy 'old=command:bfloat16,model=CKPT,stays=true,\
run="torchrun --nproc-per-node 8 examples/score_fsdp2.py {model}"'

It needs torch, transformers and pyarrow, and runs on GPUs, or on a CPU where there is none. Put
what your trainer does in place of `load` and `log_probs`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM


def load(checkpoint: str) -> torch.nn.Module:
    """Weights in float32, sharded over the ranks, cast to bfloat16 for the forward."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


@torch.no_grad()
def log_probs(model: torch.nn.Module, row: dict[str, Any]) -> list[float]:
    """Log-probs of a row's response tokens, each read off the logits of the token before it."""
    prompt, response = row["prompt_ids"], row["response_ids"]
    device = next(model.parameters()).device
    logits = model(torch.tensor([prompt + response], device=device), use_cache=False).logits
    every = (logits[0, len(prompt) - 1 : -1].float() / row["temperature"]).log_softmax(-1)
    return every.gather(-1, torch.tensor(response, device=device)[:, None])[:, 0].tolist()


def score(model: torch.nn.Module, source: str, target: str) -> None:
    """Score one part: every rank some of its rows, and rank 0 writes them all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = pq.read_table(source).to_pylist()
    # A forward gathers weights from all ranks, so all make equally many: some rows come twice.
    turns = math.ceil(len(rows) / ranks)
    own = [rows[(rank + turn * ranks) % len(rows)] for turn in range(turns)]
    shares: list[Any] = [None] * ranks
    dist.all_gather_object(shares, {row["row"]: log_probs(model, row) for row in own})
    if rank == 0:
        scored = {row: values for share in shares for row, values in share.items()}
        lists = pa.array(list(scored.values()), pa.list_(pa.float32()))
        pq.write_table(pa.table({"row": list(scored), "log_probs": lists}), f"{target}.tmp")
        os.replace(f"{target}.tmp", target)  # whole from the first moment on


def main(checkpoint: str, source: str, target: str) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = load(checkpoint)
    while True:  # rcdiag ends the program after the last part
        score(model, source, target)
        while dist.get_rank() == 0 and os.path.exists(target):
            time.sleep(0.1)  # it is taken away when the next part is in `source`
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
