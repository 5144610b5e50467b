"""Pickles are loaded by Python's own unpickler, which gets rcdiag's code for every name.

A pickle may call any function of any module; here `find_class` knows a closed table of pairs,
module and name, and returns what stands for them in this package. Others are refused. A look-up
imports nothing, and a call runs only the function that stands here. The instructions are checked
before.
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

# Objects that dumps of multi-modal and agentic runs carry beside their tokens; nobody needs them.
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
    """Return the bytes that a pickle of protocol 2 writes as text."""
    if encoding != "latin1":
        raise ValueError("an encoding that pickles do not use")
    return text.encode("latin1")


def _set(items: Any = ()) -> set[Any]:
    return set(map(hashable, _list(items)))


def _list(items: Any = ()) -> list[Any]:
    if not isinstance(items, (list, tuple)):
        raise TypeError("items that are no list")
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


# A list that stands in other lists many times is stored once. A pickle may so hold this many times
# as many values as it stores, beyond the first ten million: prompts that a group shares.
MOST_REPEATED, NEVER_TOO_MANY = 100, 10_000_000
CONTAINERS = (dict, list, tuple, set, frozenset, np.ndarray, Foreign, Same)


def load_pickle(source: Path | Content, names: Mapping[Pair, Name] | None = None) -> Any:
    """Return what a pickle holds, built of plain containers, numpy arrays and inert objects.

    `names` are stand-ins for the classes of a trainer, beside those that every pickle may use. A
    pickle that needs another name is refused with that name; nothing of it is imported or called.
    """
    return unpickled(open_content(source), names)


def unpickled(
    content: Content,
    names: Mapping[Pair, Name] | None = None,
    load_storage: Callable[[Any], Any] | None = None,
) -> Any:
    """Load a pickle that ends where its content ends.

    `load_storage` returns what a persistent id stands for: the storage of a torch file.
    """
    try:
        check(content.view)
        content.release()
        value = _Unpickler(content, {**NAMES, **(names or {})}, load_storage).load()
        content.release()
        _check_repeated(value)
        return value
    except TooLargeError as error:
        raise RcdiagError(
            f"{content.name}: its pickle holds {error}",
            hint="save tensors or arrays in place of lists, or fewer samples in a file; a small "
            "file that says so is hostile",
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
        raise damaged(content, f"its pickle breaks off or makes no sense: {error}") from error


class _Unpickler(pickle.Unpickler):
    """An unpickler for which a name is what a table says, and no name is imported."""

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
                f"{self.content.name}: the file needs {module}.{name} to load, which is none of "
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
    """Refuse lists of lists of lists that repeat, which readers would write out.

    Ten lists, each of ten times the one before, are 100 references and ten billion values.
    """
    stored = 0
    totals: dict[int, int] = {}  # values of a container, with repetition; -1: still being counted

    def total(container: Any) -> int:
        nonlocal stored
        known = totals.get(id(container))
        if known == -1:
            raise ValueError("a container that holds itself")
        if known is not None:
            return known
        totals[id(container)] = -1
        parts, count = _parts(container)
        stored += count
        count += sum(map(total, parts))
        if count > NEVER_TOO_MANY + MOST_REPEATED * stored:
            raise TooLargeError("lists that repeat each other into billions of values")
        totals[id(container)] = count
        return count

    total([value])


def _parts(container: Any) -> tuple[list[Any], int]:
    """Return the containers in a container, and how many values it has."""
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
