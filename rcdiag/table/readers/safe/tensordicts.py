"""Convert a TensorDict in a torch file to a dict of tensors, jagged tensors and lists.

The functions that a file names, and their arguments:
https://github.com/pytorch/tensordict/blob/v0.10.0/tensordict/_reductions.py
"""

from __future__ import annotations

import math
from typing import Any

from rcdiag.table.readers.safe.stand_ins import Foreign, Name, Pair, names_of
from rcdiag.table.readers.safe.views import Jagged, StoredTensor, jagged, shape_of, view_bytes

VALUES, LENGTHS, OFFSETS = "<NJT_VALUES>", "<NJT_LENGTHS>", "<NJT_OFFSETS>"


class Same:
    """A NonTensorData: a value that is not a tensor, and the same for all rows."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __setstate__(self, state: Any) -> None:
        self.value = state["non_tensordict"]["data"]


class TensorDict(dict[str, Any]):
    """The tensors of a TensorDict by name."""

    def __setstate__(self, state: Any) -> None:
        tensors = state["_tensordict"]
        if not isinstance(tensors, dict):
            raise TypeError("a TensorDict without tensors")
        self.update(tensors)


class Stack(list[Any]):
    """The values of a NonTensorStack, one per row."""

    def __setstate__(self, state: Any) -> None:
        self.extend(item.value if isinstance(item, Same) else item for item in state["tensordicts"])


def _make(kind: Any, state: Any) -> Any:
    """Replace tensordict's `_make_td`: build an object of a class and set its state."""
    built = kind() if isinstance(kind, Name) else None
    if not isinstance(built, (Same, TensorDict, Stack)):
        raise TypeError("not a class of tensordict")
    built.__setstate__(state)
    return built


def consolidated(metadata: Any, storage: Any) -> Any:
    """Extract a TensorDict from a single tensor of bytes that holds all its tensors."""
    if not isinstance(storage, StoredTensor) or storage.kind != "uint8" or len(storage.shape) != 1:
        raise TypeError("a consolidated TensorDict without bytes")
    return _from_metadata(metadata, storage.stored.data, 0)


def _from_metadata(metadata: Any, storage: memoryview, depth: int) -> Any:
    if depth > 16:
        raise ValueError("TensorDicts that are nested too deeply")
    leaves = {key: _leaf(storage, *entry[:5]) for key, entry in metadata["leaves"].items()}
    items = {key: Same(entry[0]) for key, entry in metadata["non_tensors"].items()}
    built: dict[str, Any] = {**items, **_with_jagged(leaves)}
    known = ("cls", "non_tensors", "leaves", "cls_metadata", "size")
    for key, inner in metadata.items():
        if key not in known:
            built[key] = _from_metadata(inner, storage, depth + 1)
    if metadata["cls"] == "NonTensorStack":
        return [item.value if isinstance(item, Same) else item for item in built.values()]
    return built


def _leaf(
    storage: memoryview, kind: Any, size: Any, start: Any, stop: Any, pad: Any
) -> StoredTensor:
    """Return the tensor in bytes `start` to `stop`, of which the last `pad` are padding."""
    shape = shape_of(size)
    (start, stop) = shape_of((start, stop))
    if not start <= stop <= len(storage):
        raise ValueError("a tensor that lies outside of its storage")
    flat = view_bytes(storage[start:stop], str(kind).removeprefix("torch."))
    count = math.prod(shape)
    if count > len(flat):
        raise ValueError("a tensor that is larger than its storage")
    return StoredTensor(flat[:count].reshape(shape), str(kind).removeprefix("torch."))


def _with_jagged(leaves: dict[str, StoredTensor]) -> dict[str, StoredTensor | Jagged]:
    """Assemble jagged tensors, whose values and offsets are separate leaves."""
    whole: dict[str, StoredTensor | Jagged] = {}
    for key, leaf in leaves.items():
        if key.startswith(OFFSETS):
            name = key.removeprefix(OFFSETS)
            whole[name] = jagged(leaves[VALUES + name], leaf, leaves.get(LENGTHS + name))
        elif not key.startswith("<NJT"):
            whole[key] = leaf
    return whole


def _lazy(*arguments: Any) -> Foreign:
    return Foreign("tensordict.LazyStackedTensorDict", arguments)


TENSORDICT_NAMES: dict[Pair, Name] = names_of(
    [
        (("tensordict._reductions", "_make_td"), _make),
        (("tensordict._reductions", "_rebuild_tensordict_files_consolidated"), consolidated),
        (("tensordict._td", "TensorDict"), TensorDict),
        (("tensordict.tensorclass", "NonTensorData"), Same),
        (("tensordict.tensorclass", "NonTensorStack"), Stack),
        (("tensordict._lazy", "LazyStackedTensorDict"), _lazy),
    ]
)
