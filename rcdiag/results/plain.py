"""Dataclasses of numbers, words, lists and dicts become plain data for JSON here, and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from functools import cache
from typing import Any

from rcdiag.results.doc import required_fields

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_AS_IT_IS = frozenset({str, int, bool, types.NoneType})


def to_json(result: Any) -> str:
    """Return the JSON document of a result."""
    import msgspec

    document = unstructured(result)
    try:
        # `json.dumps` with an indent does not use its compiled encoder.
        return msgspec.json.format(json.dumps(document, allow_nan=False), indent=1) + "\n"
    except msgspec.DecodeError:  # half of a surrogate pair, as names of files may have it
        return json.dumps(document, indent=1, allow_nan=False) + "\n"


def unstructured(value: Any) -> Any:
    """Turn dataclasses into dicts, NaN and infinities into strings that any JSON reader takes."""
    kind: Any = type(value)
    if kind in _AS_IT_IS:  # first: a result of a sweep has tens of thousands of these
        return value
    if kind is float:
        return value if math.isfinite(value) else _word_of(value)
    fields = _fields_of(kind)
    if fields is not None:
        return {
            name: unstructured(item)
            for name, sparse in fields
            if (item := getattr(value, name)) is not None or not sparse
        }
    if isinstance(value, dict):
        return {str(key): unstructured(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [unstructured(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):  # of numpy
        return _word_of(value)
    return value


def _word_of(value: float) -> str:
    """Return the word for a number that is not finite."""
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


@cache
def _fields_of(kind: type) -> tuple[tuple[str, bool], ...] | None:
    """Return a dataclass's fields: the name, and whether None is left out; None of other types."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(
        (field.name, bool(field.metadata.get("sparse"))) for field in dataclasses.fields(kind)
    )


def structured(kind: Any, value: Any) -> Any:
    """Read a value of type `kind` from JSON; TypeError or ValueError where it is none."""
    if kind is Any:
        return _guessed(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value)
    if origin is list:
        return [structured(arguments[0], item) for item in _checked(list, value)]
    if origin is dict:
        return {key: structured(arguments[1], item) for key, item in _checked(dict, value).items()}
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _fields(kind, _checked(dict, value))
    if kind is float:
        return _SPECIAL[value] if isinstance(value, str) else _checked((int, float), value)
    return _checked(kind, value)


def _fields(kind: Any, value: dict[str, Any]) -> Any:
    """Read a dataclass, or a TypedDict; ValueError where a field is unknown or missing."""
    kinds = _kinds(kind)
    differ = sorted((set(value) - set(kinds)) | (required_fields(kind) - set(value)))
    if differ:
        raise ValueError(f"field `{differ[0]}` is {'unknown' if differ[0] in value else 'missing'}")
    return kind(**{name: structured(kinds[name], item) for name, item in value.items()})


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    alternatives = [kind for kind in kinds if kind is not type(None)]
    if len(alternatives) == 1:
        return structured(alternatives[0], value)
    return next(value for kind in alternatives if isinstance(value, kind))


def _checked(kinds: Any, value: Any) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"wanted {kinds}, got {type(value).__name__}")
    return value


def _guessed(value: Any) -> Any:
    """Read a value that no type describes: the words for NaN and infinities become floats."""
    if isinstance(value, dict):
        return {key: _guessed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_guessed(item) for item in value]
    return _SPECIAL.get(value, value) if isinstance(value, str) else value
