"""CSV: a column for each key, as W&B and spreadsheets export it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.logs.log import LogFile, LogReader, UnreadableLine

SEPARATORS = (",", "\t", ";")
# W&B writes the run's name before the key, and adds columns with the minimum and maximum.
RUN, RANGES = " - ", ("__MIN", "__MAX")


def _separator(file: LogFile) -> str | None:
    line = file.first_line
    return next((sign for sign in SEPARATORS if sign in line), None)


def _read(file: LogFile) -> Iterator[Mapping[str, Any] | UnreadableLine]:
    lines = iter(_lines(file))
    names = next(row for _, row in lines if any(row))
    keys = _keys(file, names)
    for number, row in lines:
        if len(row) > len(names):
            yield UnreadableLine(number, f"{len(row)} values under {len(names)} names")
        else:
            yield {key: row[index] for key, index in keys.items() if index < len(row)}


def _lines(file: LogFile) -> list[tuple[int, list[str]]]:
    """Return the values of each row, with the number of its last line.

    A column of prompts may exceed Python's limit on the size of a field, so it is raised meanwhile.
    """
    text = file.text()
    limit = csv.field_size_limit(len(text) + 1)
    try:
        reader = csv.reader(text.splitlines(), delimiter=_separator(file) or ",")
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise RcdiagError(f"{file.path}: not CSV ({error})", hint="export the log again") from error
    finally:
        csv.field_size_limit(limit)


def _keys(file: LogFile, names: list[str]) -> dict[str, int]:
    """Return the column index of each key; refuse several columns (runs) for one key."""
    keys: dict[str, int] = {}
    for index, name in enumerate(names):
        if name.endswith(RANGES):
            continue
        key = name.rpartition(RUN)[2].strip()
        if not key:
            continue
        if key in keys:
            raise RcdiagError(
                f"{file.path}: two columns for `{key}`: {names[keys[key]]!r} and {name!r}",
                hint="export one run only",
            )
        keys[key] = index
    return keys


CSV = LogReader(
    name="csv",
    says="a text table with a column for each key, as W&B exports charts and histories",
    detect=lambda file: _separator(file) is not None,
    read=_read,
)
