"""Pickles and torch files that name classes of packages which are not installed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch


class Named:
    """A class or function of a package that is not installed; pickled as its name."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *arguments: Any) -> None:
        raise AssertionError("a pickled name was called")


class Built:
    """An object that a pickle builds: a name called with arguments, then given a state."""

    def __init__(self, name: Named, arguments: tuple = (), state: Any = None) -> None:
        self.parts = (name, arguments) if state is None else (name, arguments, state)

    def __reduce__(self) -> tuple:
        return self.parts


class Writer(pickle._Pickler):
    """A pickler that writes a `Named` as its name."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)
    write: Callable[[bytes], Any]

    def save_named(self, named: Named) -> None:
        self.write(f"c{named.module}\n{named.name}\n".encode())

    dispatch[Named] = save_named


def pickled(value: Any, protocol: int = 4) -> bytes:
    stream = io.BytesIO()
    Writer(stream, protocol).dump(value)
    return stream.getvalue()


# The interface that torch.save needs of a pickle module.
MODULE = SimpleNamespace(__name__="pickled", Pickler=Writer, dumps=pickled)


def torch_bytes(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=MODULE)
    return stream.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# TensorDicts, by the documented layout of tensordict 0.10.


def tensordict(tensors: dict[str, Any], size: int = 0) -> Built:
    """Return a TensorDict that is saved tensor by tensor."""
    state = {
        "_tensordict": tensors,
        "_device": None,
        "_batch_size": torch.Size([size]),
        "_td_dim_names": None,
    }
    kind = Named("tensordict._td", "TensorDict")
    return Built(Named("tensordict._reductions", "_make_td"), (kind, state))


def consolidated(tensors: dict[str, torch.Tensor]) -> Built:
    """Return a TensorDict that is saved as one tensor of bytes."""
    leaves: dict[str, tuple] = {}
    content = bytearray()
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())
        pad = -len(raw) % 8
        start, stop = len(content), len(content) + len(raw) + pad
        leaves[name] = (str(tensor.dtype), list(tensor.shape), start, stop, pad)
        content += raw + bytes(pad)
    size = len(next(iter(tensors.values())))
    facts = {"device": None, "names": [None], "batch_size": [size], "is_locked": False}
    metadata = {"cls": "TensorDict", "non_tensors": {}, "leaves": leaves, "cls_metadata": facts}
    storage = torch.frombuffer(content, dtype=torch.uint8)
    rebuild = Named("tensordict._reductions", "_rebuild_tensordict_files_consolidated")
    return Built(rebuild, (metadata, storage))


def non_tensor(value: Any) -> Built:
    """Return a NonTensorData, which holds one value, or an array with one value per row."""
    state = {"tensordict": tensordict({}), "non_tensordict": {"data": value}}
    return Built(Named("tensordict.tensorclass", "NonTensorData"), (), state)


def stacked(values: list[Any]) -> Built:
    """Return a NonTensorStack, which holds one value per row."""
    items = [non_tensor(value) for value in values]
    state = {"stack_dim": 0, "tensordicts": items, "_batch_size": torch.Size([len(values)])}
    return Built(Named("tensordict.tensorclass", "NonTensorStack"), (), state)
