"""Lists of a result that belong together have as many entries as their words say."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from rcdiag.results.doc import Doc, described_types, documented_fields


def unequal_lists(kind: Any, document: Any) -> str | None:
    """Say which list of a document has another number of entries than belong to it; None if none.

    Args:
        kind: the type that the document was read as.
        document: its JSON: `{"figures": {"paths": [{"token_counts": [1, 2], "sums": [0.5]}]}}`.
    """
    return next(_faults(kind, document, "", {}), None)


def _faults(kind: Any, value: Any, place: str, holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each list that is too long or too short.

    Args:
        kind: the type of the value.
        value: a part of a document.
        place: where it stands in the document.
        holder: the innermost object with described fields that holds it.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if not isinstance(value, (list, dict)) or not _has_lengths(kind):
        return
    if origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from _faults(argument, value, place, holder)
    elif isinstance(value, list):
        # What is of another type than described is told where that is read.
        for index, item in enumerate(value if origin is list else ()):
            yield from _faults(arguments[0], item, f"{place}.{index}", holder)
    elif origin is dict:
        for name, item in value.items():
            yield from _faults(arguments[1], item, f"{place}.{name}", holder)
    elif _is_described(kind):
        yield from _faults_of_fields(kind, value, place, holder)


def _faults_of_fields(
    owner: type, value: Mapping[str, Any], place: str, holder: Mapping[str, Any]
) -> Iterator[str]:
    for name, (kind, doc) in _fields(owner).items():
        held = value.get(name)
        where = f"{place}.{name}".removeprefix(".")
        if isinstance(held, list):
            if len(held) < doc.fewest:
                yield f"`{where}` has {_entries(len(held))}, not {doc.fewest:,} or more"
            many, why = _wanted(doc, value, holder) or (len(held), "")
            if len(held) != many:
                yield f"`{where}` has {_entries(len(held))}, not {many:,}{why}"
        yield from _faults(kind, held, where, value)


def _wanted(
    doc: Doc, beside: Mapping[str, Any], holder: Mapping[str, Any]
) -> tuple[int, str] | None:
    """Return how many entries a list must have, and why; None where nothing says so."""
    if doc.entries is not None:
        return doc.entries, ""
    for path, less in ((doc.as_many_as, 0), (doc.one_fewer_than, 1)):
        name = path.removeprefix("../")
        other = _at(beside if name == path else holder, name) if path else None
        if isinstance(other, list):
            return max(len(other) - less, 0), f": `{name}` has {_entries(len(other))}"
    return None


def _at(value: Any, path: str) -> Any:
    """Return what stands at a path within an object: `log_ratio_histogram.counts`."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _entries(many: int) -> str:
    return f"{many:,} {'entry' if many == 1 else 'entries'}"


def _is_described(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)


@cache
def _fields(owner: type) -> dict[str, tuple[Any, Doc]]:
    """Return the fields in which lists must have some length, with the types that they hold."""
    kinds = {
        field.name: (field.type if field.doc.keys is None else field.doc.keys, field.doc)
        for field in documented_fields(owner)
    }
    return {
        name: (kind, doc) for name, (kind, doc) in kinds.items() if _says(doc) or _has_lengths(kind)
    }


def _says(doc: Doc) -> bool:
    return bool(doc.as_many_as or doc.one_fewer_than or doc.fewest) or doc.entries is not None


@cache
def _has_lengths(kind: Any) -> bool:
    """Tell whether a type holds lists, at any depth, that must have some length."""
    return any(_fields(inner) for inner in described_types(kind))
