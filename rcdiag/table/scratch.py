"""Files that a table needs while it is open lie in a folder that goes with it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class Scratch:
    """A folder for converted and copied files, gone with the last table that reads from it."""

    def __init__(self) -> None:
        self.others: tuple[Scratch, ...] = ()  # folders that stay as long as this one
        self.path = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
