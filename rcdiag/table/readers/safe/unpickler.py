"""Pickles are loaded by Python's own unpickler, which gets rcdiag's code for every name.

A pickle may call any function of any module; here `find_class` knows a closed table of names, and
returns what stands for them in this package. The instructions are checked before.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.safe.allowed import NAMES
from rcdiag.table.readers.safe.content import Content, damaged, open_content
from rcdiag.table.readers.safe.instructions import TooLargeError, check
from rcdiag.table.readers.safe.stand_ins import Foreign, Name, Pair
from rcdiag.table.readers.safe.tensordicts import Same

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
