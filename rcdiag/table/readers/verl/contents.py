"""A file of verl holds a batch in one of many ways; all become one `VerlBatch`.

* `DataProto`, pickled (`save_to_disk`), by torch.save, or with its tensors as numpy arrays:
  https://github.com/verl-project/verl/blob/v0.9.1/verl/protocol.py (`__getstate__`,
  `serialize_tensordict`);
* its TensorDict alone, or a plain dict of tensors, by torch.save; a pickled dict of arrays;
* a dict of `batch`, `non_tensor_batch` and `meta_info`;
* rows of TransferQueue with their keys and tags:
  https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/skip/rollout_skip.py

Where a file lies tells its step and the number of responses to a prompt: the options that dump
rollouts name folders so there, and in
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
    """Return prompts of a step and responses to a prompt, from the name of a folder or file."""
    for name in (path.name, *(parent.name for parent in list(path.parents)[:3])):
        if match := RESPONSES_PER_PROMPT.search(name):
            return int(match["prompts"]), int(match["responses"])
    return None


def recorded_step(path: Path, meta: dict[str, Any]) -> int | None:
    """Return the step that the batch records, or the file beside it that verl writes."""
    beside = _facts(path.parent / MARK) if path.name in DUMPED else {}
    for facts in (meta, beside):
        step = facts.get("global_steps")
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    return None


def named_step(path: Path) -> int | None:
    """Return the step in the name of a file or of its folder."""
    if path.name in DUMPED and path.parent.name.isdecimal():
        inner = path.name == QUEUE and path.parent.parent.name.isdecimal()
        return int(path.parent.parent.name if inner else path.parent.name)
    for name in (path.stem, path.parent.name):
        if match := STEP.search(name):
            return int(match["step"])
    return None


def lost_batch(files: Sequence[Path]) -> Path | None:
    """Return the first batch that is not there although verl wrote its step's meta.json.

    verl writes meta.json behind the batch, so such a batch was lost on the way here.
    """
    dumped = {file.parent for file in files if file.name in DUMPED}
    for file in sorted(files, key=natural_order):
        if file.name == MARK and file.parent not in dumped:
            facts = _facts(file)
            if "global_steps" in facts:
                return file.parent / (QUEUE if "num_trajectories" in facts else OUTPUT_BATCH)
    return None


def _facts(file: Path) -> dict[str, Any]:
    """Return what verl writes of a step beside its batch; nothing where it cannot be read."""
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


DATA_PROTO = "verl.protocol.DataProto"
NAMES = foreign([("verl.protocol", "DataProto")])


@dataclass
class VerlBatch:
    """One file: tensors of equal rows, other values by row, and facts of the whole batch."""

    tensors: dict[str, StoredTensor | Jagged] = field(default_factory=dict)
    values: dict[str, list[Any] | NDArray[Any]] = field(default_factory=dict)  # name -> by row
    meta: dict[str, Any] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # of TransferQueue, by row
    tags: list[dict[str, Any]] = field(default_factory=list)  # of TransferQueue, by row
    others: list[str] = field(default_factory=list)  # columns of kinds that no row of a table has
    shared: dict[str, Any] = field(default_factory=dict)  # what TensorDicts hold as NonTensorData

    def add(self, columns: Any) -> None:
        """Sort the columns of a dict into tensors, values by row, and facts."""
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
        """Tell facts that all rows share from lists of one value for each row, by their length.

        A prompt group is a value of each row, also where one is that of all.
        """
        count = len(self.tensors.get("responses", ()))
        for name, value in self.shared.items():
            if _length(value) == count:
                self.values[name] = value
            elif name == "uid" and isinstance(value, (str, int)):
                self.values[name] = [value] * count
            else:
                self.meta[name] = value


def open_batch(content: Content) -> VerlBatch:
    """Read what a file of verl holds; tensors are views of the file."""
    with laid_out(content.name, "verl"):
        load = load_torch if is_torch_file(content.view) else load_pickle
        loaded = load(content, NAMES)
        batch = VerlBatch()
        if isinstance(loaded, Foreign) and loaded.name == DATA_PROTO:
            tensors, values, meta = loaded.state
            batch.add(_tensors(tensors, content))
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


def _length(values: Any) -> int | None:
    """Return how many values a list or an array has; None where it is neither."""
    if isinstance(values, np.ndarray):
        return len(values) if values.ndim else None
    return len(values) if isinstance(values, list) else None


def _tensors(stored: Any, content: Content) -> Any:
    """Return the tensors of a DataProto: a torch file inside the file, or numpy arrays."""
    if stored is None:
        return {}
    if isinstance(stored, tuple):
        _, _, columns = stored
        return {name: _from_numpy(column) for name, column in columns.items()}
    tensors = load_torch(content.inner(stored, "its tensors"))
    return {} if tensors is None else tensors


def _from_numpy(stored: Any) -> StoredTensor | Jagged:
    """Return a tensor stored as kind, shape and bytes, or as a layout and a list of those."""
    if len(stored) == 2:
        return jagged_of([_from_numpy(item) for item in stored[1]])
    kind, size, content = stored
    return tensor_of_bytes(content, kind, size)


def _unpadded(column: Any) -> Any:
    """Return a column of TransferQueue as rows without padding, also where all are as long.

    A column that no nested tensor could hold is a list of tensors or of plain lists.
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
    """Put tensors of one row each together; scalars make a tensor of one dimension."""
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
    """Return the error of a batch without responses: what was given to the sampler."""
    return RcdiagError(
        f"{path}: a batch of prompts, without responses",
        hint="new_batch.dp is what the sampler was given; its output is gen_batch.dp beside it",
    )
