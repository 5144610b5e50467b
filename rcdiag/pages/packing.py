"""Lossless compression of the result documents in a page.

A JSON document is cut into pieces, which the page's script joins again: plain text, and lists of
objects with the same keys, stored by column. Columns with the same key are stored next to each
other, since gzip compresses similar numbers better; equal columns are stored once.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Sequence
from typing import Any

FEWEST_ROWS = 8  # shorter lists of objects stay text
# Base 85, four bytes in five letters, with the three letters replaced that are special in HTML.
SAFE = str.maketrans("<>&", ",:.")
LEVEL = 7  # of gzip: 9 takes four times as long and saves 3% of the bytes
WRITTEN = json.JSONEncoder(separators=(",", ":")).encode


def packed(text: str) -> str:
    """Compress a text with gzip, which browsers can unpack, and encode it in letters."""
    return base64.b85encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode().translate(SAFE)


def packed_document(document: Any) -> str:
    """Pack JSON-like data in pieces; numbers keep all digits."""
    parts: list[Any] = []
    _add_parts(document, "", parts)
    pieces: list[Any] = []
    for is_text, run in itertools.groupby(parts, lambda part: isinstance(part, str)):
        members = list(run)
        pieces += ["".join(members)] if is_text else members
    tables = [piece for piece in pieces if not isinstance(piece, str)]
    keyed = [(key, column) for table in tables for key, column in table["columns"]]
    places: dict[str, int] = {}
    for _, column in sorted(keyed, key=lambda entry: entry[0]):
        places.setdefault(column, len(places))
    for table in tables:
        table["columns"] = [places[column] for _, column in table["columns"]]
    return packed(WRITTEN({"pieces": pieces, "columns": list(places)}))


def _add_parts(value: Any, key: str, parts: list[Any]) -> None:
    """Append the pieces of a value: JSON text, and tables of rows with the same keys.

    A list of numbers is a table with one column, whose `key` is the list's name in the document.
    """
    if not isinstance(value, (dict, list)):
        parts.append(WRITTEN(value))
        return
    start, end = "{}" if isinstance(value, dict) else "[]"
    # Members of an object have names, elements of a list have none.
    items = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    if rows := _table_rows(items):
        between = rows[0][::2]
        values = zip(*(row[1::2] for row in rows), strict=True)
        keys = [key] if between == ["", ""] else between[:-1]
        columns = [(name, "\n".join(column)) for name, column in zip(keys, values, strict=True)]
        parts += (start, {"between": between, "columns": columns}, end)
        return
    parts.append(start)
    for place, (name, item) in enumerate(items):
        if place:
            parts.append(",")
        if name is not None:
            parts.append(f"{WRITTEN(name)}:")
        _add_parts(item, name or key, parts)
    parts.append(end)


def _table_rows(items: Sequence[tuple[str | None, Any]]) -> list[list[str]]:
    """Split elements into rows of a table; empty if they are few or their keys differ.

    A row is alternating JSON syntax and values, beginning with syntax.
    """
    if len(items) < FEWEST_ROWS:
        return []
    rows: list[list[str]] = []
    for name, value in items:
        row = [""] if name is None else ["", WRITTEN(name), ":"]
        _add_tokens(value, row)
        if len(row) == 1 or (rows and row[::2] != rows[0][::2]):
            return []
        rows.append(row)
    return rows


def _add_tokens(value: Any, tokens: list[str]) -> None:
    """Append the tokens of a value to `tokens`, which ends with JSON syntax before and after."""
    if isinstance(value, dict):
        start = "{"
        for name, part in value.items():
            tokens[-1] += f"{start}{WRITTEN(name)}:"
            _add_tokens(part, tokens)
            start = ","
        tokens[-1] += "}" if value else "{}"
    elif isinstance(value, list):
        start = "["
        for part in value:
            tokens[-1] += start
            _add_tokens(part, tokens)
            start = ","
        tokens[-1] += "]" if value else "[]"
    else:
        tokens += (WRITTEN(value), "")
