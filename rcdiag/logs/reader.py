"""A log reader: one format of logs, read as records, one for each logged row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError

HEAD = 4096  # bytes by which formats are recognised


class LogFile(Struct, frozen=True):
    """A file, or a folder of event files, whose format is not known yet."""

    path: Path
    head: bytes  # the first bytes; of a folder none

    @classmethod
    def at(cls, path: Path) -> LogFile:
        """Open what a user named; RcdiagError where it is missing, empty or cannot be read."""
        try:
            if path.is_dir():
                return cls(path, b"")
            with path.open("rb") as stream:
                head = stream.read(HEAD)
        except OSError as error:
            raise RcdiagError(
                f"{path}: cannot be read ({error.strerror or error})",
                hint="give the log that the trainer wrote: JSONL, CSV, an exported W&B history or "
                "TensorBoard events, or what the run printed",
            ) from error
        if not head.strip():
            raise RcdiagError(f"{path}: empty", hint="give a log with a step in it")
        return cls(path, head)

    def text(self) -> str:
        """Return the whole file as text; RcdiagError where it is none."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise RcdiagError(
                f"{self.path}: not text in UTF-8 (byte {error.start})", hint="write it as UTF-8"
            ) from error

    @property
    def first_line(self) -> str:
        """Return the first line with something in it; empty where the file is no text."""
        if b"\0" in self.head:
            return ""
        try:
            with self.path.open(encoding="utf-8-sig") as stream:
                return next((line.strip() for line in stream if line.strip()), "")
        except (OSError, UnicodeDecodeError):
            return ""


class LogReader(Struct, frozen=True, kw_only=True):
    """A format that a trainer's log may have."""

    name: str
    says: str  # who writes it, in a few words
    detect: Callable[[LogFile], bool]  # whether a file is of this format
    # The rows of the log: key -> value. Numbers that the file writes as text are `LoggedNumber`s,
    # which know their digits; values may be nested mappings; what is no number is ignored.
    read: Callable[[LogFile], Iterator[Mapping[str, Any]]]

    def entry(self) -> Entry:
        """Say who writes logs of this format, and how rcdiag reads one."""
        return Entry(
            what=f"A trainer's own log that `rcdiag score --logged` reads: {self.says}.",
            example="rcdiag score rollouts.parquet --logged FILE",
            see=("log_format", "theirs"),
        )
