"""Logs that consist of records: JSON Lines, a JSON document, or parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.logs.log import LogFile, LoggedNumber, LogReader, UnreadableLine
from rcdiag.table.readers.footer import MAGIC
from rcdiag.table.readers.parquet import open_parquet


def parsed(text: str) -> Any:
    """Parse JSON, keeping the digits of floats; NaN and Infinity are accepted."""
    return json.loads(text, parse_float=LoggedNumber.read, parse_constant=LoggedNumber.read)


def is_object(text: str) -> bool:
    """Tell whether a text is a complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_jsonl(file: LogFile) -> bool:
    """Tell whether the first line is an object, or the second behind a part of one.

    A log that was cut at its beginning, or whose first line two writers shared, is not a document.
    """
    first, second = [*file.first_lines, "", ""][:2]
    if not is_object(first):
        return (first.startswith("{") or first.endswith("}")) and is_object(second)
    return "log_history" not in json.loads(first)


def _json_lines(file: LogFile) -> Iterator[Mapping[str, Any] | UnreadableLine]:
    lines = file.text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parsed(line)
        except (ValueError, RecursionError) as error:
            # An incomplete last line is one that the run still writes.
            if number < len(lines):
                yield UnreadableLine(number, f"not JSON: {error}")
            continue
        if isinstance(record, dict):
            yield record


JSONL = LogReader(
    name="jsonl",
    says="JSON Lines of verl's file logger, of W&B's history and of HF's log history",
    detect=_is_jsonl,
    read=_json_lines,
)


def _json_document(file: LogFile) -> Iterator[Mapping[str, Any]]:
    try:
        document = parsed(file.text())
    except (ValueError, RecursionError) as error:
        raise RcdiagError(
            f"{file.path}: not JSON ({error})", hint="it was cut or edited; copy it again"
        ) from error
    if isinstance(document, dict):
        document = document.get("log_history", [document])
    if not isinstance(document, list):
        raise RcdiagError(
            f"{file.path}: contains no list of logged rows",
            hint="`trainer_state.json` has them under `log_history`; or give a list of objects",
        )
    yield from (record for record in document if isinstance(record, dict))


JSON = LogReader(
    name="json",
    says="a JSON document: `trainer_state.json` of TRL and HF trainers, or a list of rows",
    detect=lambda file: file.first_line[:1] in ("{", "["),
    read=_json_document,
)


def _parquet(file: LogFile) -> Iterator[Mapping[str, Any]]:
    for record in open_parquet(file.path).iter_batches():
        yield from record.to_pylist()


PARQUET = LogReader(
    name="parquet",
    says="a parquet file with a column for each key, as W&B exports a run's history",
    detect=lambda file: file.head.startswith(MAGIC),
    read=_parquet,
)
