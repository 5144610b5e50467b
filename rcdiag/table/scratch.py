"""A temporary folder for the files of an open table, deleted together with the table."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from rcdiag.files import not_writable

# A file in a folder next to an output; it stays locked while the folder's process lives.
LOCK = "lock"


class Scratch:
    """A folder for converted and copied files, deleted with the last table that reads from it."""

    def __init__(self, beside: Path | None = None) -> None:
        """Create the folder in the system's temporary folder, or hidden next to a file.

        Next to a file, folders that killed processes left there are removed first.
        """
        self.others: tuple[Scratch, ...] = ()  # folders that must live as long as this one
        lock = None
        if beside is None:
            self.path = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        else:
            try:
                beside.parent.mkdir(parents=True, exist_ok=True)
                _remove_dead(beside)
                self.path = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent))
                # The file is locked before it gets its final name, so that nobody else can lock it.
                new = self.path / f"{LOCK}.new"
                lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                with contextlib.suppress(OSError):  # no locks here: a kill leaves the folder
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.replace(new, self.path / LOCK)
            except OSError as error:
                raise not_writable(beside, error) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    @staticmethod
    def together(folders: Sequence[Scratch | None]) -> Scratch | None:
        """Return the first folder, which keeps the others alive."""
        there = [folder for folder in folders if folder is not None]
        if not there:
            return None
        first, *others = there
        first.others += tuple(folder for folder in others if folder is not first)
        return first

    def remove(self) -> None:
        """Delete the folder now."""
        self._finalizer()


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _remove_dead(beside: Path) -> None:
    """Delete the folders of this user's processes that were killed while writing this file."""
    name = re.compile(rf"\.{re.escape(beside.name)}\.[a-z0-9_]{{8}}")
    for folder in beside.parent.iterdir():
        if not name.fullmatch(folder.name) or folder.is_symlink():
            continue
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # not one of our folders
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid() == folder.stat().st_uid:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # still locked: its process lives
            pass
        finally:
            os.close(lock)
