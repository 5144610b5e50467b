"""Turn results into plain data for JSON, and back, with NaN and infinities as strings.

JSON has no such numbers. Documents have the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import msgspec

from rcdiag.results.doc import Anything, documented_fields

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXACT = 2**53  # beyond, integers may be inexact as floats, and numpy may store them as objects


def to_json(result: Any) -> str:
    """Return the JSON document of a result."""
    # Python's encoder, as msgspec's writes 0.00001 where documents have 1e-05. Without `indent`
    # it is the fast one, in C.
    text = json.dumps(to_plain(result), allow_nan=False)
    try:
        return msgspec.json.format(text, indent=1) + "\n"
    except msgspec.DecodeError:  # a lone surrogate, which file names may contain
        return json.dumps(json.loads(text), indent=1) + "\n"


def to_plain(value: Any) -> Any:
    """Turn structs into dicts, tuples into lists, and NaN and infinities into strings."""
    # Not `msgspec.to_builtins`: its hook gets no floats, and it writes sparse fields too.
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, msgspec.Struct):
        sparse = _sparse_fields(type(value))
        return {
            name: to_plain(item)
            for name in value.__struct_fields__
            if (item := getattr(value, name)) is not None or name not in sparse
        }
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


@cache
def _sparse_fields(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in documented_fields(kind) if field.doc.sparse)


def from_plain(kind: type, value: Any) -> Any:
    """Read a value of a type from plain data; `msgspec.ValidationError` if it does not fit."""
    return msgspec.convert(value, kind, dec_hook=_read)


def _read(kind: Any, value: Any) -> Any:
    """Read a value of one of the two types that msgspec does not know."""
    if kind is Anything:
        return _with_numbers(value)
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kinds = {str: "text", bool: "true or false", list: "a list", type(None): "null"}
        raise TypeError(f"wanted a number, got {kinds.get(type(value), 'an object')}")
    return value if abs(value) < _EXACT else float(value)


def _with_numbers(value: Any) -> Any:
    """Replace the strings "NaN", "Infinity" and "-Infinity" by numbers in untyped data."""
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return WORDS.get(value, value) if isinstance(value, str) else value
