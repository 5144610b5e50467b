"""JSON: one document with all rows, such as `trainer_state.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.logs.json_lines import parsed
from rcdiag.logs.reader import LogFile, LogReader


def _is_json(file: LogFile) -> bool:
    return file.first_line[:1] in ("{", "[")


def _read(file: LogFile) -> Iterator[Mapping[str, Any]]:
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
            f"{file.path}: no list of logged rows in it",
            hint="`trainer_state.json` has them under `log_history`; else give a list of objects",
        )
    yield from (record for record in document if isinstance(record, dict))


JSON = LogReader(
    name="json",
    says="one JSON document: `trainer_state.json` of TRL and HF trainers, or a list of rows",
    detect=_is_json,
    read=_read,
)
