"""Load pickles with Python's unpickler, but with rcdiag's own code for every name.

A pickle may call any function of any module. Here `find_class` only knows a fixed table of (module,
name) pairs, and returns a replacement from this package; every other name is refused. A look-up
imports nothing, and a call runs only the replacement. The instructions are checked beforehand.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.safe.content import Content, damaged, open_content
from rcdiag.table.readers.safe.instructions import TooLargeError, check
from rcdiag.table.readers.safe.stand_ins import (
    Attributed,
    Buffer,
    Call,
    Foreign,
    Name,
    Pair,
    foreign,
    hashable,
    names_of,
)
from rcdiag.table.readers.safe.tensordicts import TENSORDICT_NAMES, Same
from rcdiag.table.readers.safe.views import ARRAY_NAMES, TENSOR_NAMES

# Classes of objects that multi-modal and agentic dumps contain and that are ignored.
BYSTANDERS = (
    ("PIL.Image", "Image"),
    ("PIL.PngImagePlugin", "PngImageFile"),
    ("PIL.JpegImagePlugin", "JpegImageFile"),
    ("transformers.feature_extraction_utils", "BatchFeature"),
    ("transformers.tokenization_utils_base", "BatchEncoding"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("omegaconf.base", "ContainerMetadata"),
    ("omegaconf.base", "Metadata"),
    ("omegaconf.dictconfig", "DictConfig"),
    ("omegaconf.listconfig", "ListConfig"),
    ("omegaconf.nodes", "AnyNode"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("typing", "Any"),
    ("uuid", "UUID"),
)


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes that a pickle of protocol 2 stores as text."""
    if encoding != "latin1":
        raise ValueError("an encoding other than latin1")
    return text.encode("latin1")


def _set(items: Any = ()) -> set[Any]:
    return set(map(hashable, _list(items)))


def _list(items: Any = ()) -> list[Any]:
    if not isinstance(items, (list, tuple)):
        raise TypeError("items that are not a list")
    return list(items)


def _tuple(items: Any = ()) -> tuple[Any, ...]:
    return tuple(map(hashable, _list(items)))


def _dict(pairs: Any = ()) -> Attributed:
    return Attributed((hashable(key), value) for key, value in _list(pairs))


def _default_dict(factory: Any = None) -> Attributed:
    return Attributed()


def _bytes() -> bytes:
    return b""


BUILTINS: tuple[tuple[str, Call], ...] = (
    ("set", _set),
    ("frozenset", _set),
    ("list", _list),
    ("dict", _dict),
    ("tuple", _tuple),
    ("bytes", _bytes),
    ("int", None),
    ("float", None),
    ("str", None),
    ("bool", None),
)
PLAIN_CALLS: list[tuple[Pair, Call]] = [
    (("collections", "OrderedDict"), _dict),
    (("collections", "defaultdict"), _default_dict),
    (("_codecs", "encode"), _encode),
    (("_io", "BytesIO"), Buffer),
]
for _module in ("builtins", "__builtin__"):
    PLAIN_CALLS += [((_module, name), call) for name, call in BUILTINS]

NAMES: dict[Pair, Name] = (
    names_of(PLAIN_CALLS) | ARRAY_NAMES | TENSOR_NAMES | TENSORDICT_NAMES | foreign(BYSTANDERS)
)


# A list that occurs many times is stored once, such as a prompt that a group shares. A pickle may
# therefore hold this many times as many values as it stores, beyond the first ten million.
MOST_REPEATED, NEVER_TOO_MANY = 100, 10_000_000
CONTAINERS = (dict, list, tuple, set, frozenset, np.ndarray, Foreign, Same)


def load_pickle(source: Path | Content, names: Mapping[Pair, Name] | None = None) -> Any:
    """Return the content of a pickle as plain containers, numpy arrays and inert objects.

    `names` are replacements for the classes of a trainer, in addition to those for every pickle. A
    pickle with any other name is refused with that name; nothing is imported or called for it.
    """
    return unpickled(open_content(source), names)


def unpickled(
    content: Content,
    names: Mapping[Pair, Name] | None = None,
    load_storage: Callable[[Any], Any] | None = None,
) -> Any:
    """Load a pickle that takes up the whole content.

    `load_storage` maps a persistent id to an object: the storage of a torch file.
    """
    try:
        check(content.view)
        value = _Unpickler(content, {**NAMES, **(names or {})}, load_storage).load()
        _check_repeated(value)
        return value
    except TooLargeError as error:
        raise RcdiagError(
            f"{content.name}: its pickle holds {error}",
            hint="save tensors or arrays instead of lists, or fewer samples per file; if the file "
            "is small, it may be hostile",
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        BufferError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        raise damaged(content, f"its pickle is truncated or invalid: {error}") from error


class _Unpickler(pickle.Unpickler):
    """An unpickler that looks names up in a table and imports nothing."""

    def __init__(
        self,
        content: Content,
        names: Mapping[Pair, Name],
        load_storage: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(content.stream())
        self.content = content
        self.names = names
        self.load_storage = load_storage

    def find_class(self, module: str, name: str) -> Name:
        found = self.names.get((module, name))
        if found is None:
            raise RcdiagError(
                f"{self.content.name}: the file needs {module}.{name} to load, which is not among "
                "the names that tensors and plain containers use; nothing of it was executed",
                hint="save arrays, tensors, text and numbers only, without objects of other "
                "classes; a file from an unknown source may be hostile",
            )
        return found

    def persistent_load(self, reference: Any) -> Any:
        if self.load_storage is None:
            raise ValueError("a reference to another file")
        return self.load_storage(reference)


def _check_repeated(value: Any) -> None:
    """Refuse nested lists that repeat each other, because readers would expand them.

    Ten lists, each holding the one before it ten times, are 100 references but ten billion values.
    """
    stored = 0
    totals: dict[int, int] = {}  # id of a container -> its values with repetition; -1: in progress

    def total(container: Any) -> int:
        nonlocal stored
        known = totals.get(id(container))
        if known == -1:
            raise ValueError("a container that contains itself")
        if known is not None:
            return known
        totals[id(container)] = -1
        parts, count = _parts(container)
        stored += count
        count += sum(map(total, parts))
        if count > NEVER_TOO_MANY + MOST_REPEATED * stored:
            raise TooLargeError("nested lists that expand to billions of values")
        totals[id(container)] = count
        return count

    total([value])


def _parts(container: Any) -> tuple[list[Any], int]:
    """Return the containers inside a container, and its number of values."""
    values: Any = container
    if isinstance(container, dict):
        values = container.values()
    elif isinstance(container, Foreign):
        values = (*container.arguments, container.state)
    elif isinstance(container, Same):
        values = (container.value,)
    elif isinstance(container, np.ndarray):
        values = container.ravel().tolist() if container.dtype.hasobject else ()
    if any(issubclass(kind, CONTAINERS) for kind in set(map(type, values))):
        return [part for part in values if isinstance(part, CONTAINERS)], len(values)
    return [], len(values)
