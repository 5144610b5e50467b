"""Files that a table needs while it is open lie in a folder that goes with it."""

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

# In a folder beside an output, locked as long as its process lives.
LOCK = "lock"


class Scratch:
    """A folder for converted and copied files, gone with the last table that reads from it."""

    def __init__(self, beside: Path | None = None) -> None:
        """Make the folder among the system's temporary ones, or hidden beside a file.

        Beside a file it takes the place of those that killed processes have left there.
        """
        self.others: tuple[Scratch, ...] = ()  # folders that stay as long as this one
        lock = None
        if beside is None:
            self.path = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        else:
            try:
                beside.parent.mkdir(parents=True, exist_ok=True)
                _remove_dead(beside)
                self.path = Path(tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent))
                lock = _lock(self.path)
            except OSError as error:
                raise not_writable(beside, error) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    @staticmethod
    def together(folders: Sequence[Scratch | None]) -> Scratch | None:
        """Return the first of some folders, which keeps the others as long as it is there."""
        there = [folder for folder in folders if folder is not None]
        if not there:
            return None
        first, *others = there
        first.others += tuple(folder for folder in others if folder is not first)
        return first

    def remove(self) -> None:
        """Remove the folder at once."""
        self._finalizer()


def _lock(folder: Path) -> int:
    """Lock a folder; under its own name the lock is locked already, so that none takes it."""
    new = folder / f"{LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: the folder stays after a kill
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(new, folder / LOCK)
    return descriptor


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _remove_dead(beside: Path) -> None:
    """Remove the folders of this user's processes that were killed while they wrote this file."""
    name = re.compile(rf"\.{re.escape(beside.name)}\.[a-z0-9_]{{8}}")
    for folder in beside.parent.iterdir():
        if not name.fullmatch(folder.name) or folder.is_symlink():
            continue
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # none of ours
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid() == folder.stat().st_uid:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its process lives
            pass
        finally:
            os.close(lock)
