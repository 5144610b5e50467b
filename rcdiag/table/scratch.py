"""Files that a table needs while it is open lie in a folder that goes with it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from rcdiag.files import not_writable


class Scratch:
    """A folder for converted and copied files, gone with the last table that reads from it."""

    def __init__(self, beside: Path | None = None) -> None:
        """Make the folder among the system's temporary ones, or hidden beside a file."""
        self.others: tuple[Scratch, ...] = ()  # folders that stay as long as this one
        if beside is None:
            self.path = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        else:
            try:
                beside.parent.mkdir(parents=True, exist_ok=True)
                made = tempfile.mkdtemp(prefix=f".{beside.name}.", dir=beside.parent)
            except OSError as error:
                raise not_writable(beside, error) from error
            self.path = Path(made)
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder at once."""
        self._finalizer()
