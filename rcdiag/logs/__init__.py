"""Read trainers' metrics logs: the numbers that a run logged at each training step, by its keys.

To add a format, write a file with a `LogReader` and add it to `LOG_READERS`; or call
`LOG_READERS.add(...)` in a package of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

from pathlib import Path

from rcdiag.errors import RcdiagError
from rcdiag.logs.comma_separated import CSV
from rcdiag.logs.console_lines import CONSOLE
from rcdiag.logs.log import (
    Log,
    LogFile,
    LoggedNumber,
    LogReader,
    NoNumbersError,
    ShortLine,
    UnreadableLine,
    log_of,
)
from rcdiag.logs.records import JSON, JSONL, PARQUET
from rcdiag.logs.tensorboard import TENSORBOARD
from rcdiag.registry import Registry

__all__ = [
    "LOG_READERS",
    "Log",
    "LogFile",
    "LogReader",
    "LoggedNumber",
    "NoNumbersError",
    "ShortLine",
    "UnreadableLine",
    "log_files",
    "read_log",
]

# Readers are tried in this order; the first that recognises the content reads the file.
LOG_READERS: Registry[LogReader] = Registry(
    "format of logs", (PARQUET, TENSORBOARD, JSONL, CONSOLE, JSON, CSV)
)


def log_files(path: Path) -> list[Path]:
    """Return the files of a folder of logs, one for each run; or the path of a single log."""
    if not path.is_dir() or TENSORBOARD.detect(LogFile.at(path)):
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")


def read_log(path: Path, step_key: str | None = None) -> Log:
    """Read a trainer's log, in the format that its content shows.

    `step_key` is the key of the training step, if rcdiag does not know it.
    """
    file = LogFile.at(path)
    for reader in LOG_READERS.values():
        if reader.detect(file):
            return log_of(path, reader.name, reader.read(file), step_key)
    known = "; ".join(f"{reader.name}: {reader.says}" for reader in LOG_READERS.values())
    raise RcdiagError(f"{path}: not a log that rcdiag knows", hint=known)
