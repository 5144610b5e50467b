"""The documentation of a result field is part of its type: `Annotated[TYPE, Doc(...)]`.

`rcdiag explain`, the JSON Schema and the reference pages read them.
"""

from __future__ import annotations

import numbers
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    Number = float
    Anything = Any
else:
    # In a document NaN and infinities are strings, which msgspec would refuse for a float. It does
    # not know these types, so that it calls the hook of `plain.from_plain` to read their values.
    Number = numbers.Real
    Anything = object


class Doc(Struct, frozen=True):
    """Everything that a reader needs to know about one field of a result."""

    says: str  # complete sentences, understandable on their own
    unit: str = ""
    formula: str | None = None
    direction: str | None = None  # what the sign means, or which policy is divided by which
    healthy: str | None = None  # the ideal, bounds, and who says so
    example: str | None = None  # a worked number, or a command
    see: tuple[str, ...] = ()  # names that `rcdiag explain` answers
    trainers: Mapping[str, str] = {}  # what they call it
    one_of: tuple[str, ...] = ()  # the values that the field can have
    heading: str = ""  # of its column in terminal tables, if that is not its name
    needs: str = ""  # options of the command without which the field is null
    keys: type | None = None  # a TypedDict that describes a dictionary's keys
    added: bool = False  # documents of earlier versions lack it; it then has its default
    sparse: bool = False  # added later, and left out of a document where it is null
    # The length of a list: exact, at least, that of another list, or one less than that. The other
    # list is a field of the same object, or, with `../`, of the object around it.
    entries: int | None = None
    fewest: int = 0
    as_many_as: str = ""
    one_fewer_than: str = ""


class DocumentedField(Struct, frozen=True):
    """A field's name, its bare type, and its `Doc`."""

    name: str
    type: Any
    doc: Doc
    required: bool  # whether every document has it


def is_described(kind: Any) -> bool:
    """Return whether a type has documented fields: a struct or a TypedDict."""
    return typing.is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Struct))


@cache
def documented_fields(owner: Any) -> tuple[DocumentedField, ...]:
    """Return all fields of a struct, or keys of a TypedDict, in the order of definition."""
    hints = typing.get_type_hints(owner, include_extras=True)
    closed = not typing.is_typeddict(owner)
    names = owner.__struct_fields__ if closed else tuple(hints)
    fields = []
    for name in names:
        docs = [mark for mark in getattr(hints[name], "__metadata__", ()) if isinstance(mark, Doc)]
        if len(docs) != 1:
            raise TypeError(f"{owner.__name__}.{name}: {len(docs)} Docs, not 1")
        doc = docs[0]
        required = not (doc.added or doc.sparse) if closed else name in owner.__required_keys__
        fields.append(DocumentedField(name, typing.get_args(hints[name])[0], doc, required))
    return tuple(fields)


def heading_of(owner: type, name: str) -> str:
    """Return the heading of a field's column in terminal tables."""
    docs = {each.name: each.doc for each in documented_fields(owner)}
    return docs[name].heading or name


def described_types(kind: Any) -> Iterator[type]:
    """Yield the structs and TypedDicts inside a type: `Rung` in `list[Rung] | None`."""
    if is_described(kind):
        yield typing.cast(type, kind)
    for part in typing.get_args(kind):
        yield from described_types(part)
