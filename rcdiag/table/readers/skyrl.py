"""SkyRL dumps the batch of every training step with `trainer.dump_data_batch`.

Layout: https://github.com/NovaSky-AI/SkyRL/blob/main/skyrl/backends/skyrl_train/training_batch.py
(`TensorBatch.__getstate__`, `TrainingInput`). All matrices are padded on the left: the response is
the last columns of `sequences`, and the columns of the other matrices correspond to these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import experts as experts_of_tokens
from rcdiag.table.arrow import from_numpy, from_python, ragged
from rcdiag.table.kept_ids import unpadded
from rcdiag.table.padding import Cut
from rcdiag.table.readers import padded
from rcdiag.table.readers.padded import NO_MASK, RowIndex, Where, cut_rows
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.safe import (
    Content,
    Foreign,
    Jagged,
    StoredTensor,
    foreign,
    laid_out,
    load_pickle,
    load_torch,
    open_content,
)
from rcdiag.table.readers.safe.views import tensor_of_bytes

MODULES = ("skyrl.backends.skyrl_train.training_batch", "skyrl_train.training_batch")
CLASS, REBUILD = "TrainingInputBatch", "_rebuild_tensor_batch"
FORMAT = "TensorFormat"  # an enumeration that states how a tensor is stored, from SkyRL 0.4 on
NAMES = foreign((module, name) for module in MODULES for name in (CLASS, REBUILD, FORMAT))
BATCHES = {f"{module}.{name}" for module in MODULES for name in (CLASS, REBUILD)}
STEP = re.compile(r"global_step_(\d+)_")
# Kept ids, [response tokens, largest set], padded with -1; packed from SkyRL 0.4 on.
SUPPORT = "rollout_sample_support"

# SkyRL's columns with one number per response token -> columns of the table.
FLOATS = {
    "rollout_logprobs": "rollout_log_probs",
    "action_log_probs": "old_log_probs",
    "base_action_log_probs": "ref_log_probs",
    "advantages": "advantages",
    "returns": "returns",
    "values": "values",
}


def _read(dump: Dump) -> Iterator[Rows]:
    for number, path in enumerate(dump.files):
        with laid_out(str(path), "SkyRL"):
            tensors, metadata = _open(open_content(path))
            yield from _rows_of(tensors, metadata, path, number, dump.notes)


def _open(content: Content) -> tuple[dict[str, StoredTensor | Jagged], dict[str, Any]]:
    """Return the tensors and the metadata of a TrainingInputBatch."""
    loaded = load_pickle(content, NAMES)
    if not isinstance(loaded, Foreign):
        raise TypeError(f"no {CLASS}")
    state = loaded.state if loaded.name.endswith(CLASS) else loaded.arguments[1]
    stored = {name: value for name, value in state["batch_dict"].items() if value is not None}
    tensors: dict[str, StoredTensor | Jagged] = {}
    for name, value in stored.items():
        kind = _format(value)
        if kind == "packed_tensor":  # rows that are stored concatenated
            ends = _tensor(value["cu_seqlens"], content).numpy().astype(np.int64)
            tensors[name] = Jagged(_tensor(value["values"], content), ends[:-1], np.diff(ends))
        elif kind != "tensor_list":  # images
            tensors[name] = _tensor(value, content)
    return tensors, state["metadata"] or {}


def _format(stored: dict[str, Any]) -> Any:
    """Return how a tensor is stored; files before SkyRL 0.4 do not state it and mean "numpy"."""
    kind = stored.get("format", "numpy")
    return kind.arguments[0] if isinstance(kind, Foreign) else kind


def _tensor(stored: dict[str, Any], content: Content) -> StoredTensor:
    """Return a tensor that is stored as bytes, as an array, or as a torch file."""
    kind = _format(stored)
    if kind == "numpy":
        return tensor_of_bytes(stored["data"], stored["dtype"], stored["shape"])
    if kind == "numpy_view":
        return StoredTensor(stored["data"], stored["data"].dtype.name)
    tensor = load_torch(content.inner(stored["data"], "a tensor"))
    if not isinstance(tensor, StoredTensor):
        raise TypeError("a torch file without a tensor")
    return tensor


def _rows_of(
    tensors: dict[str, StoredTensor | Jagged],
    metadata: dict[str, Any],
    path: Path,
    number: int,
    notes: Notes,
) -> Iterator[Rows]:
    sequences = _matrix(tensors, "sequences")
    count = len(sequences)
    padded.check_rows(tensors, "sequences", path)
    fills = metadata.get("pad_size") or 0
    if not 0 <= fills <= count:
        raise ValueError(f"{fills} rows of padding in a batch of {count}")
    if fills:
        _check_fills(tensors, count - fills, path)
        notes.change("rows that SkyRL adds to fill a batch (pad_size) are left out", fills)
    facts = _columns_of_rows(tensors, metadata, path, number, count, notes)
    if "loss_mask" not in tensors:
        notes.change(NO_MASK, count - fills)
    experts = tensors.get("rollout_expert_indices")
    support = tensors.get(SUPPORT)
    most_kept = 0
    if support is not None:
        most_kept = (support.values if isinstance(support, Jagged) else support).shape[-1]
    width = sequences.shape[1] * (1 + padded.width_of_experts(experts) + most_kept)
    cut = partial(_token_columns, tensors)
    yield from padded.rows_in_parts(path, np.arange(count - fills), width, facts, cut)


def _check_fills(tensors: dict[str, StoredTensor | Jagged], first: int, path: Path) -> None:
    """Refuse rows that only fill up the batch (from row `first` on) but are trained on."""
    if "loss_mask" not in tensors:
        return
    trained = padded.sums(tensors["loss_mask"], np.arange(first, len(tensors["loss_mask"]))) != 0
    if trained.any():
        raise RcdiagError(
            f"{path}, row {first + int(np.argmax(trained))}: padding according to the `pad_size` "
            "of its batch, but its loss_mask is not 0",
            hint="the metadata belong to another batch; write the dump again",
        )


def _matrix(tensors: dict[str, StoredTensor | Jagged], name: str) -> StoredTensor:
    """Return a tensor whose rows all have the same width."""
    tensor = tensors[name]
    if not isinstance(tensor, StoredTensor):
        raise TypeError(f"{name} is packed")
    return tensor


def _token_columns(
    tensors: dict[str, StoredTensor | Jagged], rows: RowIndex, where: Where
) -> dict[str, Any]:
    attention, lengths = (
        padded.block(padded.rows_of(_matrix(tensors, name), rows), "right", name, where)
        for name in ("attention_mask", "response_mask")
    )
    sequences = _matrix(tensors, "sequences")
    width, responses = sequences.shape[1], _matrix(tensors, "response_mask").shape[1]
    short = np.flatnonzero(attention.lengths < lengths.lengths)
    if len(short):
        row = int(short[0])
        raise RcdiagError(
            f"{where(row)}: response_mask has {lengths.lengths[row]} tokens, attention_mask has "
            f"{attention.lengths[row]} for prompt and response together",
            hint=padded.BELONG_TOGETHER,
        )
    response = lengths + (width - responses)
    prompt = Cut(attention.starts, attention.lengths - lengths.lengths)
    columns = {
        "prompt_ids": padded.token_column(sequences, rows, prompt, "sequences", where),
        "response_ids": padded.token_column(sequences, rows, response, "sequences", where),
    }
    for source, name in {"loss_mask": "response_mask", **FLOATS}.items():
        if source not in tensors:
            continue
        matrix = _matrix(tensors, source)
        if matrix.shape[1:] != (responses,):
            raise ValueError(f"{source} has the shape {list(matrix.shape)}")
        columns[name] = (
            padded.mask_column(matrix, rows, lengths, source, where)
            if source == "loss_mask"
            else padded.token_column(matrix, rows, lengths, source, where)
        )
    experts = tensors.get("rollout_expert_indices")
    if experts is not None:
        values = padded.after_prompts(experts, rows, prompt, response, "experts", where)
        unknown = tensors.get("router_padding_mask")  # 1 where the router's choice is a placeholder
        if unknown is not None:
            made_up = cut_rows(unknown, rows, response, "router_padding_mask", where) != 0
            values = np.where(made_up[:, None, None], 0, values)
        columns["rollout_routed_experts"] = experts_of_tokens(values, response.lengths)
    support = tensors.get(SUPPORT)
    if support is not None:
        kept = unpadded(cut_rows(support, rows, lengths, SUPPORT, where))
        columns["rollout_kept_ids"] = ragged(ragged(kept.values, kept.lengths), lengths.lengths)
    return columns


def _columns_of_rows(
    tensors: dict[str, StoredTensor | Jagged],
    metadata: dict[str, Any],
    path: Path,
    number: int,
    count: int,
    notes: Notes,
) -> dict[str, pa.Array]:
    """Return the columns with one value per row, for all rows."""
    made: dict[str, pa.Array] = {}
    groups = _groups(metadata, number, count)
    if groups is not None:
        notes.change("groups are those of SkyRL's policy_prompt_boundaries")
        made["group_id"] = from_python(groups, pa.string())
    made |= padded.named_step(path.name, STEP, count, notes)
    if "rewards" in tensors:
        made["reward"] = from_numpy(padded.sums(tensors["rewards"], np.arange(count)))
    return made


def _groups(metadata: dict[str, Any], number: int, count: int) -> list[str | None] | None:
    """Return the group of each row, from the row ranges of the prompts; None if not recorded."""
    boundaries = metadata.get("policy_prompt_boundaries")
    if not boundaries:
        return None
    groups: list[str | None] = [None] * count
    before = 0
    for prompt, (start, end) in enumerate(boundaries):
        if not before <= start <= end <= count:
            raise ValueError(
                f"a prompt with rows {start} to {end}, after row {before}, in a batch of {count}"
            )
        groups[start:end] = [f"{number}-{prompt}"] * (end - start)
        before = end
    return groups


SKYRL = Reader(
    name="skyrl",
    says="Training batches of SkyRL, which trainer.dump_data_batch writes.",
    patterns=("*_training_input.pkl", "*.pkl"),
    detect=lambda peek: not peek.pickle_calls.isdisjoint(BATCHES),
    read=_read,
    source="https://github.com/NovaSky-AI/SkyRL/blob/main/skyrl/backends/skyrl_train/"
    "training_batch.py",
)
