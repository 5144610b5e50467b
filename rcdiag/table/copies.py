"""Another process reads a table by itself where it sees the very same files."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.errors import RcdiagError
from rcdiag.table.remote import AnyFile, RemoteFile
from rcdiag.table.table import Table

# Size in bytes and time of the last change in nanoseconds; behind a URL the storage's own version.
Mark = tuple[int, int | str]


def marks_of(table: Table) -> list[Mark]:
    """Return what tells every file of a table from another one under the same path."""
    return [_mark(path) for path in table.parquets]


def _mark(path: AnyFile) -> Mark:
    if isinstance(path, RemoteFile):
        return path.now().mark
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def sees(table: Table, marks: list[Mark]) -> bool:
    """Tell whether this process sees the files of a table that have these marks."""
    try:
        return marks_of(table) == marks
    except (OSError, RcdiagError, ImportError):
        return False


def without_what_stays(table: Table) -> Table:
    """Return a table that can be sent to another process.

    It lacks the folder that goes with the table here, and what only this process is asked for.
    """
    return replace(table, scratch=None, drawn_from=None, conversion=None, joined=None)
