"""JSONL: one object for each logged row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.logs.log import LoggedNumber
from rcdiag.logs.reader import LogFile, LogReader


def parsed(text: str) -> Any:
    """Parse JSON with the digits of its numbers; NaN and Infinity are numbers too."""
    return json.loads(text, parse_float=LoggedNumber.read, parse_constant=LoggedNumber.read)


def is_object(text: str) -> bool:
    """Tell whether a text is one whole JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_jsonl(file: LogFile) -> bool:
    line = file.first_line
    return line.startswith("{") and is_object(line) and "log_history" not in json.loads(line)


def _read(file: LogFile) -> Iterator[Mapping[str, Any]]:
    lines = file.text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parsed(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return  # the run still writes it, or was killed while it did
            raise RcdiagError(
                f"{file.path}, line {number}: not JSON ({error})",
                hint="every line is one object: a step with its numbers",
            ) from error
        if isinstance(record, dict):
            yield record


JSONL = LogReader(
    name="jsonl",
    says="JSON Lines as verl's file logger writes them, W&B's history, and HF's log history",
    detect=_is_jsonl,
    read=_read,
)
