"""Find the invalid field of a document: ``in `findings.0.slug` wanted text, got null``.

msgspec checks the types of fields. Checked here: that no field is missing or unknown, and that
lists that belong together have the same length.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from rcdiag.results.doc import Doc, described_types, documented_fields, is_described
from rcdiag.results.plain import from_plain

_NAMES = {
    "str": "text",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
}


def type_fault(kind: Any, value: Any, place: str = "") -> str | None:
    """Say which part of a value cannot be read as `kind`, and why; None if all of it can.

    msgspec's error path has `[...]` for every key of a dictionary, so each part is decoded on its
    own, down to the innermost that fails.
    """
    try:
        from_plain(kind, value)
    except msgspec.ValidationError as error:
        for name, inner, item in _parts(kind, value):
            fault = type_fault(inner, item, f"{place}.{name}".removeprefix("."))
            if fault is not None:
                return fault
        return _in_words(str(error).partition(" - at `$")[0], place)
    return None


def _in_words(message: str, place: str) -> str:
    """Return msgspec's message with the place, and with JSON's names of types."""
    if found := re.fullmatch(r"Object (missing|contains).* field `(.+)`", message):
        what = "missing" if found[1] == "missing" else "unknown"
        return f"`{f'{place}.{found[2]}'.removeprefix('.')}` is {what}"
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        kinds = [_NAMES.get(name, name) for name in found[1].split(" | ") if name != "null"]
        wanted = " or ".join(dict.fromkeys(kinds))
        message = f"wanted {wanted}, got {_NAMES.get(found[2], found[2])}"
    return f"in `{place}` {message}" if place else message


def _parts(kind: Any, value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield the name, type and value of each part of a value; for a union, by each member."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from _parts(argument, value)
    elif origin is list and isinstance(value, list):
        yield from ((index, arguments[0], item) for index, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        yield from ((name, arguments[1], item) for name, item in value.items())
    elif is_described(kind) and isinstance(value, dict):
        for field in documented_fields(kind):
            if field.name in value:
                yield field.name, field.type, value[field.name]


def incompleteness(kind: Any, document: Any) -> str | None:
    """Say which field of a document is missing, unknown, too long or too short; None if none is.

    msgspec accepts that a field with a default is missing, ignores unknown keys of a TypedDict,
    and does not check the lengths of lists.

    Args:
        kind: the type that the document was read as.
        document: its JSON: `{"figures": {"paths": [{"token_counts": [1, 2], "sums": [0.5]}]}}`.
    """
    return next(_incomplete(kind, document, "", {}, typed=True), None)


def _incomplete(
    kind: Any, value: Any, place: str, holder: Mapping[str, Any], *, typed: bool
) -> Iterator[str]:
    """Yield a sentence for each field of a value that is missing, unknown, too long or too short.

    Args:
        kind: the type of the value.
        value: a part of a document.
        place: where it is in the document.
        holder: the innermost object with documented fields that contains it.
        typed: False within a dictionary whose keys are only documented (`Doc.keys`): provenance of
            an older version lacks some, and a newer one has others.
    """
    if not isinstance(value, (list, dict)) or not _holds_described(kind):
        return
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        for member in typing.get_args(kind):
            yield from _incomplete(member, value, place, holder, typed=typed)
    elif not is_described(kind):
        for name, inner, item in _parts(kind, value):
            yield from _incomplete(inner, item, f"{place}.{name}", holder, typed=typed)
    elif isinstance(value, dict):
        yield from _incomplete_object(kind, value, place, holder, typed=typed)


def _incomplete_object(
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
        yield from _incomplete(field.doc.keys or field.type, held, where, value, typed=described)


def _wanted(
    doc: Doc, beside: Mapping[str, Any], holder: Mapping[str, Any]
) -> tuple[int, str] | None:
    """Return how many entries a list must have, and why; None for lists of any length."""
    if doc.entries is not None:
        return doc.entries, ""
    for path, less in ((doc.as_many_as, 0), (doc.one_fewer_than, 1)):
        name = path.removeprefix("../")
        other: Any = beside if name == path else holder
        for key in name.split("."):  # log_ratio_histogram.counts
            other = other.get(key) if isinstance(other, Mapping) else None
        if isinstance(other, list):
            return max(len(other) - less, 0), f": `{name}` has {_entries(len(other))}"
    return None


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


@cache
def _holds_described(kind: Any) -> bool:
    return any(True for _ in described_types(kind))
