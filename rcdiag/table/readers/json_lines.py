"""JSON lines under names of one's own: every record is a row, every key a column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.jsonl import records
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Reader, Rows

# Values of all columns that are gathered before they become rows of the parquet file.
VALUES_AT_A_TIME = 1_000_000
# Objects of more fields, or further inside of each other, are kept as JSON text.
MOST_FIELDS = 64
DEEPEST = 4
ONE_TYPE = "a column has one type; write the dump again"
INT64 = range(-(2**63), 2**63)

Line = tuple[int, dict[str, Any]]


def read_json_lines(dump: Dump) -> Iterator[Rows]:
    """Yield the records of files as rows under their own names.

    Numbers, texts and lists of numbers keep their values. Fields of objects are columns
    `object.field`. Objects of very many fields, lists of anything else, and what has no one type in
    a column, are kept as JSON text.
    """
    for path in dump.files:
        for part in _parts(path):
            names = dict.fromkeys(name for _, record in part for name in record)
            columns = {name: _column(name, part, path) for name in names}
            numbers = np.array([number for number, _ in part])
            yield Rows(pa.RecordBatch.from_pydict(columns), path, numbers, "line")


def _parts(path: Path) -> Iterator[list[Line]]:
    """Yield the records of a file with their lines, as many at a time as fit into memory."""
    part: list[Line] = []
    values = 0
    objects = _Objects()
    for where, number, record in records(path, dict):  # type: ignore[type-var]
        if not isinstance(record, dict):
            raise RcdiagError(
                f"{where}: it is no JSON object", hint="each line is one response as JSON object"
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
    """Objects in records, whose fields become columns of the record."""

    def __init__(self) -> None:
        self._fields: dict[str, set[str]] = {}  # object -> its fields in all lines so far
        self._whole: set[str] = set()  # objects that are kept as they are

    def taken_apart(self, record: dict[str, Any], where: str) -> dict[str, Any]:
        """Return a record with the fields of its objects, `object.field`, in their place.

        An object whose fields are too many to be columns, such as a mapping by ids of users, stays
        one value from there on, and so does one under the name of what was a list before.
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
                f"{where}: `{name}` is a key, and a field of an object",
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
    """Return one column; a list of numbers in which something else stands is refused."""
    values = [record.get(name) for _, record in part]
    lists = [value for value in values if isinstance(value, list)]
    if not any(isinstance(each, (int, float)) for value in lists for each in value):
        return _plain(values)
    for (number, _), value in zip(part, values, strict=True):
        if value is None or (isinstance(value, list) and all(map(_is_number, value))):
            continue
        what = type(value).__name__
        if isinstance(value, list):
            place = next(place for place, each in enumerate(value) if not _is_number(each))
            what = f"{value[place]!r} at place {place}"
        raise RcdiagError(
            f"{path}, line {number}: `{name}` holds {what}, and lists of numbers in other lines",
            hint=ONE_TYPE,
        )
    kinds = {kind for value in values if value is not None for kind in set(map(type, value))}
    if bool in kinds and kinds & {int, float}:
        raise _two_types(name, part, path)
    try:
        return pa.array(values)
    except pa.ArrowInvalid as error:  # a whole number beside floats that no float equals
        raise RcdiagError(
            f"{path}: `{name}` is no column of numbers ({error})", hint=ONE_TYPE
        ) from error


def _two_types(name: str, part: list[Line], path: Path) -> RcdiagError:
    """Return the error for lists of numbers in which true or false stands too."""
    numbers = [
        (line, place, each)
        for line, record in part
        for place, each in enumerate(record.get(name) or [])
        if each is not None
    ]
    first = numbers[0][2]
    line, place, other = next(
        one for one in numbers if isinstance(one[2], bool) != isinstance(first, bool)
    )
    return RcdiagError(
        f"{path}, line {line}: `{name}` holds {other!r} at place {place}, and {first!r} before",
        hint=ONE_TYPE,
    )


def _is_number(value: Any) -> bool:
    """Tell whether something may stand in a list of numbers: null may, a number that fits too."""
    return value is None or isinstance(value, float) or (isinstance(value, int) and value in INT64)


def _plain(values: list[Any]) -> pa.Array:
    """Return numbers, flags, texts, lists of nothing as they are, anything else as JSON text."""
    try:
        nested = any(
            isinstance(value, dict)  # parquet has no object without fields
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
    """Tell whether the first record has token ids, and as many numbers beside them."""
    if peek.path.suffix not in (".jsonl", ".ndjson", ".json"):
        return False
    try:
        record = _Objects().taken_apart(peek.record, "")
    except RcdiagError:  # reading says what is wrong, where these are lines of tokens at all
        record = peek.record
    lists = [value for value in record.values() if isinstance(value, list) and value]
    ids = {len(each) for each in lists if all(type(value) is int for value in each)}
    return any(
        len(each) in ids
        and any(isinstance(value, float) for value in each)
        and all(map(_is_number, each))
        for each in lists
    )


JSON_LINES = Reader(
    name="json-lines",
    says="JSON lines under names of one's own: a response in each line, with lists of token ids "
    "and log-probs.",
    patterns=("*.jsonl", "*.ndjson"),
    detect=_is_of_tokens,
    read=read_json_lines,
    any_names=True,
    grouped_by_order=True,
)
