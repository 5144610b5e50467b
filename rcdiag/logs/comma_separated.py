"""CSV: a column for each key, as W&B and spreadsheets export it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import count

from rcdiag.errors import RcdiagError
from rcdiag.logs.log import LogFile, LogReader, Record, RunStart, ShortLine, UnreadableLine

SEPARATORS = (",", "\t", ";")
# W&B writes the run's name before the key, and adds columns with the minimum and maximum. A chart
# of several runs has columns for each, two runs may have one name; they share the column of the
# step.
RUN, RANGES = " - ", ("__MIN", "__MAX")


def _separator(file: LogFile) -> str | None:
    line = file.first_line
    return next((sign for sign in SEPARATORS if sign in line), None)


def _read(file: LogFile) -> Iterator[Record]:
    lines = iter(_lines(file))
    names = next(row for _, row in lines if any(row))
    rows = []
    for number, row in lines:
        if len(row) > len(names):
            yield UnreadableLine(number, f"{len(row)} values under {len(names)} names")
            continue
        if 0 < len(row) < len(names):
            yield ShortLine(number)
        rows.append(row + [""] * (len(names) - len(row)))
    shared, *runs = _columns(file, names).items()
    for run, columns in runs or [shared]:
        if len(runs) > 1:
            yield RunStart(run)
        for row in rows:
            filled = {key: row[index] for key, index in columns.items()}
            if any(filled.values()):
                yield {key: row[index] for key, index in shared[1].items()} | filled


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


def _columns(file: LogFile, names: list[str]) -> dict[str, dict[str, int]]:
    """Return the column index of each key, by run; those that all runs share come first, under "".

    A key that comes again under one name is of another run of that name; without a name it is
    refused.
    """
    columns: dict[str, dict[str, int]] = {"": {}}
    for index, name in enumerate(names):
        run, _, key = (part.strip() for part in name.rpartition(RUN))
        if not key or name.endswith(RANGES):
            continue
        if not run and key in columns[run]:
            raise RcdiagError(
                f"{file.path}: two columns for `{key}`, {columns[run][key] + 1} and {index + 1}",
                hint="export each key once",
            )
        same_name = (run if place == 1 else f"{run} ({place})" for place in count(1))
        run = next(name for name in same_name if key not in columns.get(name, {}))
        columns.setdefault(run, {})[key] = index
    return columns


CSV = LogReader(
    name="csv",
    says="a text table with a column for each key, as W&B exports charts and histories",
    detect=lambda file: _separator(file) is not None,
    read=_read,
)
