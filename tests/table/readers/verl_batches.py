"""Batches of verl in every file form, written by the documented layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.table.readers.pickled import (
    Built,
    Named,
    consolidated,
    pickled,
    stacked,
    tensordict,
    torch_bytes,
    write,
)
from tests.table.readers.rollouts import PAD, Rollouts

NAMES = {
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_prob",
    "old_entropy": "entropys",
    "advantages": "advantages",
}


def tensors_of(batch: Rollouts, floats: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return the tensors of a full batch of verl, as in a hook before the update."""
    prompts = batch.matrix("prompt_ids", torch.int64, fill=PAD, right=True)
    responses = batch.matrix("response_ids", torch.int64, fill=PAD)
    before, after = batch.attention()
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": torch.cat([before, after], 1),
        "position_ids": torch.zeros(len(batch), 3, 18, dtype=torch.int64),
        "response_mask": batch.matrix("response_mask", torch.int64),
        "token_level_scores": torch.zeros(len(batch), 12),
        "rm_scores": torch.ones(len(batch), 12),
    }
    for row, reward in enumerate(batch.column("reward")):
        # The last token of the response; of an empty one the last column.
        tensors["token_level_scores"][row, int(after[row].sum()) - 1] = reward
    for ours, theirs in NAMES.items():
        tensors[theirs] = batch.matrix(ours, floats)
    return tensors


def values_of(batch: Rollouts) -> dict[str, Any]:
    def objects(values: list[Any]) -> np.ndarray:
        array = np.empty(len(values), object)
        array[:] = values
        return array

    return {
        "uid": objects(batch.column("group_id")),
        "__num_turns__": np.ones(len(batch), np.int32),
        "data_source": objects(["made/up"] * len(batch)),
        "min_global_steps": objects([None] * len(batch)),
        "extra_info": objects([{"index": row} for row in range(len(batch))]),
    }


def data_proto(tensors: Any, values: Any, meta: dict[str, Any] | None = None) -> Built:
    """Return a DataProto whose tensors are stored as `tensors`: bytes, a tuple or None."""
    state = (tensors, values, {"global_steps": 3, "temperature": 0.7} if meta is None else meta)
    return Built(Named("verl.protocol", "DataProto"), (), state)


def as_numpy(tensors: dict[str, torch.Tensor]) -> tuple:
    """Serialise the tensors like verl's `serialize_tensordict`."""
    columns = {
        name: (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.contiguous().flatten().view(torch.uint8).numpy(),
        )
        for name, tensor in tensors.items()
    }
    return ((len(next(iter(tensors.values()))),), None, columns)


def queue_batch(batch: Rollouts, fills: int = 1, keys: list[str] | None = None) -> dict[str, Any]:
    """Return rows of TransferQueue, of which the last ones are fillers."""
    rows = [*batch.rows, *batch.rows[1 : 1 + fills]]
    count = len(rows)

    def jagged(name: str, kind: torch.dtype) -> torch.Tensor:
        values = [torch.tensor(row[name], dtype=kind) for row in rows]
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    def score(row: dict[str, Any]) -> torch.Tensor:
        values = torch.zeros(len(row["response_ids"]))
        values[-1:] = row["reward"]
        return values

    columns = {
        "prompts": jagged("prompt_ids", torch.int64),
        "responses": jagged("response_ids", torch.int64),
        "response_mask": jagged("response_mask", torch.int64),
        "rollout_log_probs": jagged("rollout_log_probs", torch.float32),
        "rm_scores": torch.nested.as_nested_tensor(list(map(score, rows)), layout=torch.jagged),
        "num_turns": torch.ones(count, dtype=torch.int64),
        "data_source": stacked(["made/up"] * count),
    }
    tags = [
        {"status": "finished", "global_steps": 5, "min_global_steps": 4, "max_global_steps": 4 + n}
        for n in [0] * (len(batch) - 1) + [1] + [0] * fills
    ]
    for tag, row in zip(tags, rows, strict=True):
        tag["prompt_len"], tag["response_len"] = len(row["prompt_ids"]), len(row["response_ids"])
    for tag in tags[len(batch) :]:
        tag["is_padding"] = True
    keys = keys or [f"{row['group_id']}_{number}_0" for number, row in enumerate(rows)]
    return {"tensordict": tensordict(columns), "tags": tags, "keys": keys, "global_steps": 5}


FORMS = {
    "consolidated": lambda t, v: pickled(data_proto(torch_bytes(consolidated(t)), v)),
    "protocol 5": lambda t, v: pickled(data_proto(torch_bytes(consolidated(t)), v), 5),
    "unconsolidated": lambda t, v: pickled(data_proto(torch_bytes(tensordict(t)), v)),
    "numpy": lambda t, v: pickled(data_proto(as_numpy(t), v)),
    "torch.save of the DataProto": lambda t, v: torch_bytes(
        data_proto(torch_bytes(consolidated(t)), v)
    ),
    "torch.save of the TensorDict": lambda t, v: torch_bytes(tensordict(t)),
    "torch.save of a dict": lambda t, v: torch_bytes(t),
    "torch.save of a dict with uid": lambda t, v: torch_bytes({**t, "uid": v["uid"].tolist()}),
    "pickle of a dict of arrays": lambda t, v: pickled({k: x.numpy() for k, x in t.items()}),
    "torch.save of parts": lambda t, v: torch_bytes(
        {"batch": t, "non_tensor_batch": v, "meta_info": {"global_steps": 3, "temperature": 0.7}}
    ),
}


def write_batch(path: Path, batch: Rollouts, form: str = "consolidated", **changes: Any) -> Path:
    """Write a batch; `changes` replace tensors, or remove them if None."""
    tensors = {k: v for k, v in {**tensors_of(batch), **changes}.items() if v is not None}
    return write(path, FORMS[form](tensors, values_of(batch)))
