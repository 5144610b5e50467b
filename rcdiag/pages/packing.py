"""A page holds result documents packed: exact to the letter, and small.

A document of JSON is cut into pieces, which the page's script joins again: text as it is, and
tables, whose rows have all keys in common. Columns of tables stand apart, those under one key
beside each other, since gzip finds more in numbers of one kind; equal columns are stored once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

FEWEST_ROWS = 8  # of a table: fewer stay as they are
# Four bytes in five letters, none of which means anything in HTML: base 85 but for three of them.
SAFE = str.maketrans("<>&", ",:.")
LEVEL = 7  # of gzip: 9 takes four times as long and saves 4% of the bytes
NUMBERS = {int, float, bool, type(None)}
WRITTEN = json.JSONEncoder(separators=(",", ":")).encode


def packed(text: str) -> str:
    """Return a text compressed by gzip, which browsers unpack, in letters."""
    return base64.b85encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode().translate(SAFE)


def packed_document(document: Any) -> str:
    """Return plain data, as JSON has it, packed in pieces; numbers keep every digit."""
    pieces: list[Any] = []
    for piece in _pieces(document):
        if pieces and isinstance(piece, str) and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    tables = [piece for piece in pieces if not isinstance(piece, str)]
    keyed = [(key, column) for table in tables for key, column in table["columns"]]
    places: dict[str, int] = {}
    for _, column in sorted(keyed, key=lambda entry: entry[0]):
        places.setdefault(column, len(places))
    for table in tables:
        table["columns"] = [places[column] for _, column in table["columns"]]
    return packed(WRITTEN({"pieces": pieces, "columns": list(places)}))


def compact(text: str) -> str:
    """Leave out the white space of a JSON document; numbers keep every digit."""
    return WRITTEN(json.loads(text))


def _pieces(value: Any, key: str = "") -> Iterator[Any]:
    """Yield the text of a value in pieces: strings, and tables of rows that are alike.

    A list of numbers is a table of one column; its `key` is the name that it has in the document.
    """
    if not isinstance(value, (dict, list)):
        yield _written(value)
        return
    ends = "{}" if isinstance(value, dict) else "[]"
    if type(value) is list and len(value) >= FEWEST_ROWS and set(map(type, value)) <= NUMBERS:
        # The encoder writes a whole list as fast as one of its numbers.
        yield ends[0]
        column = WRITTEN(value)[1:-1].replace(",", "\n")
        yield {"between": ["", ""], "columns": [(key, column)]}
        yield ends[1]
        return
    if rows := _alike(_items(value)):
        between = rows[0][::2]
        values = zip(*(row[1::2] for row in rows), strict=True)
        keys = [key] if between == ["", ""] else between[:-1]
        columns = [(name, "\n".join(column)) for name, column in zip(keys, values, strict=True)]
        yield ends[0]
        yield {"between": between, "columns": columns}
        yield ends[1]
        return
    yield ends[0]
    for place, (name, item) in enumerate(_items(value)):
        yield ("," if place else "") + ("" if name is None else f"{quoted(name)}:")
        yield from _pieces(item, name or key)
    yield ends[1]


def _alike(items: Sequence[tuple[str | None, Any]]) -> list[list[str]]:
    """Cut members into rows of a table; none where they are few, or one differs in its keys."""
    if len(items) < FEWEST_ROWS:
        return []
    if all(name is None and not isinstance(value, (dict, list)) for name, value in items):
        return [["", _written(value), ""] for _, value in items]
    rows: list[list[str]] = []
    for item in items:
        row = _tokens(item)
        if len(row) == 1 or (rows and row[::2] != rows[0][::2]):
            return []
        rows.append(row)
    return rows


def _written(value: Any) -> str:
    """Write a text, a number, a flag or null; the encoder takes ten times as long for a number."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    return repr(value) if kind is int or kind is float else WRITTEN(value)


def _items(value: dict[str, Any] | list[Any]) -> Sequence[tuple[str | None, Any]]:
    """Return the members of an object with their names, or those of a list without any."""
    return list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]


def _tokens(item: tuple[str | None, Any]) -> list[str]:
    """Cut a member into what stands between values, and values: two kinds by turns."""
    tokens = [""]

    def add(value: Any) -> None:
        if isinstance(value, (dict, list)):
            tokens[-1] += "{" if isinstance(value, dict) else "["
            for place, (name, part) in enumerate(_items(value)):
                tokens[-1] += ("," if place else "") + ("" if name is None else f"{quoted(name)}:")
                add(part)
            tokens[-1] += "}" if isinstance(value, dict) else "]"
        else:
            tokens.extend((_written(value), ""))

    name, value = item
    if name is not None:
        tokens.extend((quoted(name), ":"))
    add(value)
    return tokens
