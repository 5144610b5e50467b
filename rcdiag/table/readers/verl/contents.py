"""Read a batch from any of the file layouts of verl into a `VerlBatch`.

* `DataProto`, pickled (`save_to_disk`), by torch.save, or with its tensors as numpy arrays:
  https://github.com/verl-project/verl/blob/v0.9.1/verl/protocol.py (`__getstate__`,
  `serialize_tensordict`);
* its TensorDict alone, or a plain dict of tensors, by torch.save; a pickled dict of arrays;
* a dict of `batch`, `non_tensor_batch` and `meta_info`;
* rows of TransferQueue with their keys and tags:
  https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/skip/rollout_skip.py

The step and the number of responses per prompt are read from folder names, as they are set by the
options that dump rollouts, and by
https://github.com/verl-project/verl/blob/v0.7.1/verl/utils/rollout_skip.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.reader import natural_order
from rcdiag.table.readers.safe import (
    Content,
    Foreign,
    Jagged,
    Same,
    StoredTensor,
    foreign,
    is_torch_file,
    laid_out,
    load_pickle,
    load_torch,
)
from rcdiag.table.readers.safe.views import KINDS, tensor_of_bytes

RESPONSES_PER_PROMPT = re.compile(r"GBS(?P<prompts>\d+)_+N(?P<responses>\d+)(?:_|$)")
STEP = re.compile(r"(?:^|[^a-z])(?:global_|gen)?steps?[_-]?(?P<step>\d+)", re.IGNORECASE)
INPUT_BATCH = "new_batch.dp"
OUTPUT_BATCH, QUEUE = "gen_batch.dp", "tq_batch.pt"
DUMPED = (OUTPUT_BATCH, QUEUE)
MARK = "meta.json"


def named_sizes(path: Path) -> tuple[int, int] | None:
    """Return the prompts per step and responses per prompt from a folder or file name."""
    for name in (path.name, *(parent.name for parent in list(path.parents)[:3])):
        if match := RESPONSES_PER_PROMPT.search(name):
            return int(match["prompts"]), int(match["responses"])
    return None


def recorded_step(path: Path, meta: dict[str, Any]) -> int | None:
    """Return the step that is recorded in the batch, or in verl's meta.json next to it."""
    beside = _facts(path.parent / MARK) if path.name in DUMPED else {}
    for facts in (meta, beside):
        step = facts.get("global_steps")
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    return None


def named_step(path: Path) -> int | None:
    """Return the step in the name of a file or its folder."""
    if path.name in DUMPED and path.parent.name.isdecimal():
        inner = path.name == QUEUE and path.parent.parent.name.isdecimal()
        return int(path.parent.parent.name if inner else path.parent.name)
    for name in (path.stem, path.parent.name):
        if match := STEP.search(name):
            return int(match["step"])
    return None


def lost_batch(files: Sequence[Path]) -> Path | None:
    """Return the first batch that is missing although verl wrote its step's meta.json.

    verl writes meta.json after the batch, so such a batch was lost later.
    """
    dumped = {file.parent for file in files if file.name in DUMPED}
    for file in sorted(files, key=natural_order):
        if file.name == MARK and file.parent not in dumped:
            facts = _facts(file)
            if "global_steps" in facts:
                return file.parent / (QUEUE if "num_trajectories" in facts else OUTPUT_BATCH)
    return None


def _facts(file: Path) -> dict[str, Any]:
    """Return the content of a step's meta.json; empty if it cannot be read."""
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


DATA_PROTO = "verl.protocol.DataProto"
NAMES = foreign([("verl.protocol", "DataProto")])


@dataclass
class VerlBatch:
    """The content of one file: tensors with equal numbers of rows, other columns, and metadata."""

    tensors: dict[str, StoredTensor | Jagged] = field(default_factory=dict)
    values: dict[str, list[Any] | NDArray[Any]] = field(default_factory=dict)  # one value per row
    meta: dict[str, Any] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # of TransferQueue, one per row
    tags: list[dict[str, Any]] = field(default_factory=list)  # of TransferQueue, one per row
    others: list[str] = field(default_factory=list)  # names of columns that cannot be converted
    shared: dict[str, Any] = field(default_factory=dict)  # NonTensorData of TensorDicts

    def add(self, columns: Any) -> None:
        """Sort the columns of a dict into tensors, values per row, and shared values."""
        for name, column in columns.items():
            if (
                isinstance(column, list)
                and column
                and all(isinstance(v, StoredTensor) for v in column)
            ):
                column = jagged_of(column)
            if isinstance(column, np.ndarray) and column.ndim > 1 and column.dtype.name in KINDS:
                column = StoredTensor(column, column.dtype.name)
            if isinstance(column, Jagged) or (isinstance(column, StoredTensor) and column.shape):
                self.tensors[name] = column
            elif isinstance(column, Same):
                self.shared[name] = column.value
            elif isinstance(column, (list, np.ndarray)):
                self.values[name] = column
            elif isinstance(column, (int, float, str)):
                self.meta[name] = column
            elif column is not None:
                self.others.append(str(name))

    def settle(self) -> None:
        """Split `shared` by length: lists with one value per row, and values for the whole batch.

        A prompt group (`uid`) is always a value per row, even if it is stored once for all.
        """
        count = len(self.tensors.get("responses", ()))
        for name, value in self.shared.items():
            is_list = isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim)
            if is_list and len(value) == count:
                self.values[name] = value
            elif name == "uid" and isinstance(value, (str, int)):
                self.values[name] = [value] * count
            else:
                self.meta[name] = value


def open_batch(content: Content) -> VerlBatch:
    """Read the batch in a file of verl; its tensors are views of the file."""
    with laid_out(content.name, "verl"):
        load = load_torch if is_torch_file(content.view) else load_pickle
        loaded = load(content, NAMES)
        batch = VerlBatch()
        if isinstance(loaded, Foreign) and loaded.name == DATA_PROTO:
            tensors, values, meta = loaded.state
            if isinstance(tensors, tuple):
                _, _, columns = tensors
                batch.add({name: _from_numpy(column) for name, column in columns.items()})
            elif tensors is not None:  # a torch file inside the file
                inner = load_torch(content.inner(tensors, "its tensors"))
                batch.add({} if inner is None else inner)
            batch.add(values)
            batch.meta |= meta
        elif isinstance(loaded, dict) and "tensordict" in loaded:
            batch.add({name: _unpadded(column) for name, column in loaded["tensordict"].items()})
            batch.keys, batch.tags = list(loaded.get("keys", ())), list(loaded.get("tags", ()))
            batch.meta["global_steps"] = loaded.get("global_steps")
        elif isinstance(loaded, dict) and isinstance(loaded.get("batch"), dict):
            batch.add(loaded["batch"])
            batch.add(loaded.get("non_tensor_batch") or {})
            batch.meta |= loaded.get("meta_info") or {}
        elif isinstance(loaded, dict):
            batch.add(loaded)
        else:
            raise TypeError("neither a DataProto nor a dict of tensors")
        batch.settle()
        return batch


def _from_numpy(stored: Any) -> StoredTensor | Jagged:
    """Return a tensor stored as (type, shape, bytes), or as a layout and a list of those."""
    if len(stored) == 2:
        return jagged_of([_from_numpy(item) for item in stored[1]])
    kind, size, content = stored
    return tensor_of_bytes(content, kind, size)


def _unpadded(column: Any) -> Any:
    """Return a column of TransferQueue as rows without padding, even if all have the same length.

    A column that does not fit a nested tensor is a list of tensors or of plain lists.
    """
    if (
        isinstance(column, list)
        and column
        and all(
            isinstance(row, list) and all(isinstance(value, (bool, int, float)) for value in row)
            for row in column
        )
    ):
        kind = "float32" if any(isinstance(x, float) for row in column for x in row) else "int64"
        return jagged_of([StoredTensor(np.array(row, kind), kind) for row in column])
    if not isinstance(column, StoredTensor) or len(column.shape) < 2:
        return column
    rows, width, *inner = column.shape
    values = StoredTensor(column.stored.reshape(rows * width, *inner), column.kind)
    return Jagged(values, np.arange(rows) * width, np.full(rows, width))


def jagged_of(rows: list[Any]) -> StoredTensor | Jagged:
    """Concatenate tensors of one row each; scalars become a 1-dimensional tensor."""
    if not rows or not all(
        isinstance(row, StoredTensor) and row.kind == rows[0].kind for row in rows
    ):
        raise TypeError("rows of different kinds")
    if not rows[0].shape:
        return StoredTensor(np.array([row.stored for row in rows]), rows[0].kind)
    lengths = np.array([len(row) for row in rows], np.int64)
    values = StoredTensor(np.concatenate([row.stored for row in rows]), rows[0].kind)
    return Jagged(values, np.cumsum(lengths) - lengths, lengths)


def missing_responses(path: Path) -> RcdiagError:
    """Return the error for a batch without responses: the sampler's input."""
    return RcdiagError(
        f"{path}: a batch of prompts, without responses",
        hint="new_batch.dp is the sampler's input; its output is gen_batch.dp in the same folder",
    )
