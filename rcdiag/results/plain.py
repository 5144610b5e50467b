"""Dataclasses of numbers, words, lists and dicts become plain data for JSON here, and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from rcdiag.results.doc import required_fields

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
_EXACT = 2**53  # from here on not every integer is a float, and numpy takes some for objects
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
        return _number(value)
    return _checked(kind, value)


def place_of_fault(kind: Any, value: Any, place: str = "") -> tuple[str, Exception] | None:
    """Return the place of the innermost part that cannot be read as `kind`, and why; None if all.

    The place is that of a document: `corrections.disabled.mean_weight`.
    """
    try:
        structured(kind, value)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        for name, inner, item in _parts(kind, value):
            found = place_of_fault(inner, item, f"{place}.{name}" if place else str(name))
            if found is not None:
                return found
        return place, error
    return None


def _parts(kind: Any, value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield the parts of a value with their names and kinds, as far as both are known."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        alternatives = [kind for kind in arguments if kind is not type(None)]
        if len(alternatives) == 1:
            yield from _parts(alternatives[0], value)
    elif origin is list and isinstance(value, list):
        yield from ((place, arguments[0], item) for place, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        yield from ((name, arguments[1], item) for name, item in value.items())
    elif isinstance(value, dict) and (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
        kinds = _kinds(kind)
        yield from ((name, kinds[name], item) for name, item in value.items() if name in kinds)


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


def _number(value: Any) -> float:
    """Read a number: the words for NaN and infinities too, and integers of any size."""
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    number: float = _checked((int, float), value)
    return number if abs(number) < _EXACT else float(number)


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    alternatives = [kind for kind in kinds if kind is not type(None)]
    if len(alternatives) == 1:
        return structured(alternatives[0], value)
    return _checked(tuple(alternatives), value)


def _checked(kinds: Any, value: Any) -> Any:
    """Return a value that is of one of these types; a flag is no number."""
    if isinstance(value, kinds) and (
        type(value) is not bool or kinds is bool or (isinstance(kinds, tuple) and bool in kinds)
    ):
        return value
    wanted = dict.fromkeys(_NAMES.get(kind, "another value") for kind in _as_tuple(kinds))
    got = "null" if value is None else _NAMES.get(type(value), type(value).__name__)
    raise TypeError(f"wanted {' or '.join(wanted)}, got {got}")


def _as_tuple(kinds: Any) -> tuple[Any, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def _guessed(value: Any) -> Any:
    """Read a value that no type describes: the words for NaN and infinities become floats."""
    if isinstance(value, dict):
        return {key: _guessed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_guessed(item) for item in value]
    return _SPECIAL.get(value, value) if isinstance(value, str) else value
