"""A recorder counts its rows in a small file, by which the next one knows what a kill has lost.

The file is locked as long as the recorder's process lives. One that can be locked belongs to a
process that ended without closing its recorder: killed, or out of memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

NAME = ".run-{run}.rows"
PATTERN = ".run-*.rows"


class Ledger:
    """Counts the rows that a recorder took and those that it wrote, so that a kill leaves both."""

    def __init__(self, folder: Path, run: str) -> None:
        """`run` names the recorder, and is part of the names of its files."""
        self._path = folder / NAME.format(run=run)
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: losses stay unknown
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.count(0, 0)
            # Under its own name it is locked already, so that no other recorder takes it for dead.
            os.replace(temporary, self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise

    def count(self, taken: int, written: int) -> None:
        """Store how many rows were taken and written until now."""
        os.pwrite(self._descriptor, f"{taken:>19} {written:>19}\n".encode(), 0)

    def remove(self) -> None:
        """Remove the file: every row is written."""
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Close the file and leave it where it is."""
        os.close(self._descriptor)


def rows_lost(folder: Path) -> int:
    """Return how many rows recorders of this folder took and, killed, never wrote.

    Their half-written files are removed. A kill between the rename of a part and the count counts
    the part's rows, though they are there.
    """
    return sum(_rows_lost_by(path) for path in folder.glob(PATTERN))


def _rows_lost_by(path: Path) -> int:
    """Return the rows lost by the recorder of one ledger; 0 where its process lives."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            taken, written = map(int, stream.read().split())
    except (OSError, ValueError):  # locked, gone, or on a file system without locks
        return 0
    run = path.name.removeprefix(".").removesuffix(".rows")
    for half in path.parent.glob(f".*{run}.*.tmp"):
        half.unlink(missing_ok=True)
    if taken == written:
        path.unlink(missing_ok=True)
    return taken - written
