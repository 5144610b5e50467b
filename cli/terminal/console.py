"""Writing to a reader that may leave before the end."""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console


class TerminalConsole(Console):
    """A reader that has seen enough (`| head`) is no failure, nor a finding."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop(self.file)


def drop(stream: IO[str]) -> None:
    """Let what is still to come go nowhere: the reader at the other end has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_out(text: str) -> None:
    """Write to stdout as it is, whether or not somebody reads to the end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
