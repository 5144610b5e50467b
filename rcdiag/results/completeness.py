"""A document is whole where no field is missing or unknown and lists that belong together match.

msgspec checks the types of fields. It takes a field with a default for one that may be missing, and
ignores unknown keys of a TypedDict; and it knows nothing of the lengths of lists.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from rcdiag.results.doc import Doc, described_types, documented_fields, is_described


def first_fault(kind: Any, document: Any) -> str | None:
    """Say which field of a document is missing, unknown, too long or too short; None if none is.

    Args:
        kind: the type that the document was read as.
        document: its JSON: `{"figures": {"paths": [{"token_counts": [1, 2], "sums": [0.5]}]}}`.
    """
    return next(_faults(kind, document, "", {}, typed=True), None)


def _faults(
    kind: Any, value: Any, place: str, holder: Mapping[str, Any], *, typed: bool
) -> Iterator[str]:
    """Yield a sentence for each fault of a value.

    Args:
        kind: the type of the value.
        value: a part of a document.
        place: where it is in the document.
        holder: the innermost object with described fields that holds it.
        typed: False within a dictionary whose keys are described only (`Doc.keys`): provenance of
            an older version lacks some, and a newer one has others.
    """
    if not isinstance(value, (list, dict)) or not _holds_described(kind):
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from _faults(argument, value, place, holder, typed=typed)
    elif is_described(kind) and isinstance(value, dict):
        yield from _faults_of_object(kind, value, place, holder, typed=typed)
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(arguments[0], item, f"{place}.{index}", holder, typed=typed)
    elif origin is dict and isinstance(value, dict):
        for name, item in value.items():
            yield from _faults(arguments[1], item, f"{place}.{name}", holder, typed=typed)


def _faults_of_object(
    owner: type, value: Mapping[str, Any], place: str, holder: Mapping[str, Any], *, typed: bool
) -> Iterator[str]:
    fields = documented_fields(owner)
    if typed:
        missing = [field.name for field in fields if field.required and field.name not in value]
        unknown = value.keys() - {field.name for field in fields}
        for name, what in (*((n, "missing") for n in missing), *((n, "unknown") for n in unknown)):
            yield f"`{f'{place}.{name}'.removeprefix('.')}` is {what}"
    for field in fields:
        held = value.get(field.name)
        where = f"{place}.{field.name}".removeprefix(".")
        if isinstance(held, list):
            if len(held) < field.doc.fewest:
                yield f"`{where}` has {_entries(len(held))}, not {field.doc.fewest:,} or more"
            length, why = _wanted(field.doc, value, holder) or (len(held), "")
            if len(held) != length:
                yield f"`{where}` has {_entries(len(held))}, not {length:,}{why}"
        described = typed and field.doc.keys is None
        yield from _faults(field.doc.keys or field.type, held, where, value, typed=described)


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
    """Return what is at a path within an object: `log_ratio_histogram.counts`."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


@cache
def _holds_described(kind: Any) -> bool:
    return any(True for _ in described_types(kind))
