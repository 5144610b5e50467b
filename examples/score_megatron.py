"""Score a table by Megatron-core, weights and vocabulary split over GPUs: a program for `command`.

    rcdiag score DUMP -o scored.parquet --policy 'old=command:bfloat16,stays=true,\
run="torchrun --nproc-per-node 8 examples/score_megatron.py CHECKPOINT"'

It needs torch, megatron-core and pyarrow. `load` reads a `torch_dist` checkpoint, and the arguments
of its GPTModel from CHECKPOINT/model.json; put your trainer's own model in its place. All ranks are
one tensor-parallel group and compute every row together.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(arguments: dict[str, Any], ranks: int) -> GPTModel:
    """The model of model.json: `config` is for TransformerConfig, `model` for GPTModel."""
    config = TransformerConfig(
        **arguments["config"],
        tensor_model_parallel_size=ranks,
        use_cpu_initialization=True,
        params_dtype=getattr(torch, arguments["dtype"]),
        bf16=arguments["dtype"] == "bfloat16",
        activation_func=getattr(torch.nn.functional, arguments["activation"]),
    )
    layers = get_gpt_layer_local_spec(normalization=config.normalization)
    model = GPTModel(config, layers, **arguments["model"], parallel_output=True)
    return model.to(DEVICE, config.params_dtype).eval()


def load(checkpoint: str) -> GPTModel:
    """The model with its weights; a checkpoint of any tensor-parallel size is cut anew."""
    arguments = json.loads((Path(checkpoint) / "model.json").read_text())
    model = build(arguments, dist.get_world_size())
    weights = dist_checkpointing.load(model.sharded_state_dict(), checkpoint)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def log_probs(model: GPTModel, row: dict[str, Any]) -> list[float]:
    """Log-probs of a row's response tokens, each read off the logits of the token before it."""
    prompt, response = row["prompt_ids"], row["response_ids"]
    ids = torch.tensor([prompt + response], device=DEVICE)
    length = ids.shape[1]
    positions = torch.arange(length, device=DEVICE)[None]
    hidden_from = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)[None, None]
    logits = model(ids, positions, hidden_from)  # [1, length, vocabulary / ranks]
    scaled = logits[:, len(prompt) - 1 : -1].float().contiguous() / row["temperature"]
    return (-vocab_parallel_cross_entropy(scaled, ids[:, len(prompt) :]))[0].tolist()


def score(model: GPTModel, source: str, target: str) -> None:
    """Score one part; all ranks know the log-probs, and rank 0 writes them."""
    rows = pq.read_table(source).to_pylist()
    lists = [log_probs(model, row) for row in rows]
    if dist.get_rank() == 0:
        columns = {
            "row": [row["row"] for row in rows],
            "log_probs": pa.array(lists, pa.list_(pa.float32())),
        }
        pq.write_table(pa.table(columns), f"{target}.tmp")
        os.replace(f"{target}.tmp", target)  # whole from the first moment on


def main(checkpoint: str, source: str, target: str) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    if torch.cuda.is_available():
        model_parallel_cuda_manual_seed(0)  # attention asks for its state, also without dropout
    model = load(checkpoint)
    while True:  # rcdiag ends the program after the last part
        score(model, source, target)
        while dist.get_rank() == 0 and os.path.exists(target):
            time.sleep(0.1)  # it is taken away when the next part is in `source`
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
