"""JSON lines with any names: every record becomes a row, every key a column."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS
from rcdiag.table.readers.jsonl import records
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Reader, Rows

# Values of all columns that are collected before they are written as rows.
VALUES_AT_A_TIME = 1_000_000
# Objects with more fields than this, or nested deeper, are kept as JSON text.
MOST_FIELDS = 64
DEEPEST = 4
ONE_TYPE = "a column has one type; write the dump again"
INT64 = range(-(2**63), 2**63)
NUMBERS = (int, float)
# Types of the values in a list of numbers, or of a mask of true and false; each may be null.
FLOATS: frozenset[type] = frozenset({int, float, type(None)})
BITS: frozenset[type] = frozenset({bool, type(None)})

Line = tuple[int, dict[str, Any]]


def read_json_lines(dump: Dump) -> Iterator[Rows]:
    """Yield the records of files as rows with their own column names.

    Numbers, texts and lists of numbers are kept. Fields of objects become columns `object.field`.
    Objects with very many fields, lists of anything else, and columns of mixed types are kept as
    JSON text.
    """
    for path in dump.files:
        for part in _parts(path):
            names = dict.fromkeys(name for _, record in part for name in record)
            columns = {name: _column(name, part, path) for name in names}
            numbers = np.array([number for number, _ in part])
            yield Rows(pa.RecordBatch.from_pydict(columns), path, numbers, "line")


def _parts(path: Path) -> Iterator[list[Line]]:
    """Yield the records of a file with their line numbers, in parts that fit into memory."""
    part: list[Line] = []
    values = 0
    objects = _Objects()
    for where, number, record in records(path, dict):  # type: ignore[type-var]
        if not isinstance(record, dict):
            raise RcdiagError(
                f"{where}: it is not a JSON object",
                hint="each line is one response as a JSON object",
            )
        record = objects.taken_apart(record, where)
        part.append((number, record))
        values += len(record) + sum(
            len(value) for value in record.values() if isinstance(value, list)
        )
        if values >= VALUES_AT_A_TIME:
            yield part
            part, values = [], 0
    if part:
        yield part


class _Objects:
    """Splits objects in records into columns, one per field."""

    def __init__(self) -> None:
        self._fields: dict[str, set[str]] = {}  # object -> its fields in all lines so far
        self._whole: set[str] = set()  # objects that are not split

    def taken_apart(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        """Return a record whose objects are replaced by their fields, `object.field`.

        An object with too many fields for columns, such as a mapping by user id, stays one value
        from then on; so does an object in a column that held a list before.
        """
        self._whole.update(name for name, value in record.items() if isinstance(value, list))
        if not any(isinstance(value, dict) for value in record.values()):
            return record
        made: dict[str, Any] = {}
        for name, value in record.items():
            self._put(made, name, value, where)
        return made

    def _put(
        self, made: dict[str, Any], name: str, value: Any, where: str, depth: int = DEEPEST
    ) -> None:
        if name in made:
            raise RcdiagError(
                f"{where}: `{name}` is both a key and a field of an object",
                hint="give one of them another name",
            )
        if not isinstance(value, dict) or not value or not depth or name in self._whole:
            made[name] = value
            return
        fields = self._fields.setdefault(name, set())
        fields.update(value)
        if len(fields) > MOST_FIELDS:
            self._whole.add(name)
            made[name] = value
            return
        for field, inner in value.items():
            self._put(made, f"{name}.{field}", inner, where, depth - 1)


def _column(name: str, part: list[Line], path: Path) -> pa.Array:
    """Return one column; raise an error if a list of numbers contains anything else.

    Numbers are of one kind: true and false do not stand among others.
    """
    values = [record.get(name) for _, record in part]
    lists = (value for value in values if isinstance(value, list))
    first = next((each for each in chain.from_iterable(lists) if isinstance(each, NUMBERS)), None)
    if first is None:
        return _plain(values)
    kinds = BITS if isinstance(first, bool) else FLOATS
    for (line, _), value in zip(part, values, strict=True):
        what, among = type(value).__name__, "lists of numbers in other lines"
        if isinstance(value, list):
            place = _odd_place(value, kinds)
            what = "" if place is None else f"{value[place]!r} at place {place}"
            among = f"{first!r} elsewhere"
        if value is not None and what:
            raise RcdiagError(
                f"{path}, line {line}: `{name}` holds {what}, and {among}", hint=ONE_TYPE
            )
    try:
        return pa.array(values)
    except pa.ArrowInvalid as error:  # an integer that floats cannot represent, among floats
        raise RcdiagError(
            f"{path}: `{name}` is not a column of numbers ({error})", hint=ONE_TYPE
        ) from error


def _odd_place(values: list[Any], kinds: frozenset[type]) -> int | None:
    """Return the first place with another kind of value, or an integer beyond int64; else None."""
    if set(map(type, values)) <= kinds - {int}:
        return None
    return next(
        (
            place
            for place, each in enumerate(values)
            if type(each) not in kinds or (type(each) is int and each not in INT64)
        ),
        None,
    )


def _plain(values: list[Any]) -> pa.Array:
    """Return numbers, booleans, texts and empty lists unchanged, anything else as JSON text."""
    try:
        nested = any(
            isinstance(value, dict)  # parquet cannot store an object without fields
            or (isinstance(value, list) and any(each is not None for each in value))
            for value in values
        )
        if not nested:
            return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # two types, or too large
        pass
    encode = msgspec.json.Encoder().encode
    return pa.array(
        [
            value if value is None or isinstance(value, str) else encode(value).decode()
            for value in values
        ],
        pa.string(),
    )


def _is_of_tokens(peek: Peek) -> bool:
    """Tell whether the first record has `response_ids`, or token ids and as many numbers."""
    if peek.path.suffix not in (".jsonl", ".ndjson", ".json"):
        return False
    try:
        record = _Objects().taken_apart(peek.record, "")
    except RcdiagError:  # reading reports the problem, if these are lines of tokens at all
        record = peek.record
    lists = {name: value for name, value in record.items() if isinstance(value, list) and value}
    ids = {
        len(each)
        for name, each in lists.items()
        if name == "response_ids" or all(type(value) is int for value in each)
    }
    # Under their own names, values of wrong types count too: reading reports their line.
    return "response_ids" in lists or any(
        len(each) in ids
        and (
            LOOKS_LIKE_LOG_PROBS.search(name) is not None
            or (
                any(isinstance(value, float) for value in each) and _odd_place(each, FLOATS) is None
            )
        )
        for name, each in lists.items()
    )


JSON_LINES = Reader(
    name="json-lines",
    says="JSON lines under any names: a response in each line, with lists of token ids "
    "and log-probs.",
    patterns=("*.jsonl", "*.ndjson"),
    detect=_is_of_tokens,
    read=read_json_lines,
    any_names=True,
    grouped_by_order=True,
)
