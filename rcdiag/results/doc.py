"""The words of a result field stand on the field itself, as `Annotated[TYPE, Doc(...)]`.

`rcdiag explain`, the JSON Schema and the reference pages read them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, field
from functools import cache
from typing import Any

from rcdiag.frozen import dataclass


@dataclass(frozen=True)
class Doc:
    """A doc says everything that a reader needs to know about one field of a result."""

    says: str  # plain sentences that make sense alone
    _: KW_ONLY
    unit: str = ""
    formula: str | None = None
    direction: str | None = None  # what the sign means, or which policy is divided by which
    healthy: str | None = None  # the ideal, bounds, and who says so
    example: str | None = None  # a worked number, or a command
    see: tuple[str, ...] = ()  # names that `rcdiag explain` answers
    trainers: Mapping[str, str] = field(default_factory=dict, hash=False)  # what they call it
    one_of: tuple[str, ...] = ()  # the values that the field can have
    heading: str = ""  # of its column in the terminal's tables, where that is not its name
    needs: str = ""  # options of the command without which the field is null
    keys: type | None = None  # a TypedDict that describes a dictionary's keys
    entries: int | None = None  # how many entries a list has
    fewest: int = 0  # how many it has at least
    as_many_as: str = ""  # the list beside it that has as many; `../` is of what holds its object
    one_fewer_than: str = ""  # that of which a list has an entry between every two neighbours


@dataclass(frozen=True)
class DocumentedField:
    """A documented field is a name, the type without the words, and the words."""

    name: str
    type: Any
    doc: Doc
    required: bool  # whether every document has it


@cache
def documented_fields(owner: type) -> tuple[DocumentedField, ...]:
    """Return all fields of a dataclass, or keys of a TypedDict, in the order of definition."""
    hints = typing.get_type_hints(owner, include_extras=True)
    if dataclasses.is_dataclass(owner):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(owner)}
    required = required_fields(owner)
    return tuple(
        DocumentedField(name, *_type_and_doc(owner, name, hint), name in required)
        for name, hint in hints.items()
    )


def heading_of(owner: type, name: str) -> str:
    """The heading of a field's column in the terminal's tables."""
    docs = {each.name: each.doc for each in documented_fields(owner)}
    return docs[name].heading or name


@cache
def required_fields(owner: type) -> frozenset[str]:
    """Return the fields of a dataclass, or the keys of a TypedDict, that every document has."""
    if not dataclasses.is_dataclass(owner):
        return getattr(owner, "__required_keys__", frozenset())
    return frozenset(
        field.name for field in dataclasses.fields(owner) if not field.metadata.get("added")
    )


def _type_and_doc(owner: type, name: str, hint: Any) -> tuple[Any, Doc]:
    docs = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Doc)]
    if len(docs) != 1:
        raise TypeError(f"{owner.__name__}.{name}: {len(docs)} Docs, not 1")
    return typing.get_args(hint)[0], docs[0]


def described_types(kind: Any) -> Iterator[type]:
    """Find the dataclasses and TypedDicts inside a type: `Rung` in `list[Rung] | None`."""
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        yield typing.cast(type, kind)
    for part in typing.get_args(kind):
        yield from described_types(part)
