"""Rows of a table come in batches of one file each, which knows where its rows stood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, without_secrets
from rcdiag.table.remote import AnyFile
from rcdiag.table.sources import SourceFile

RowRange = tuple[int, int]  # first row and the row after the last, in the whole table


class RowOrigin(Protocol):
    """Where the rows of a parquet file, which rcdiag made, come from."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Return the files that were given."""
        ...

    def where(self, row: int) -> str:
        """Return file and record of a row, as an error names them."""
        ...


class Origin:
    """Where each row of a converted table stood in the files that were given."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        self._names = {file.path: file.name for file in files}
        self._blocks: list[tuple[Path, str, NDArray[np.int64]]] = []
        self._starts: list[int] = []
        self.num_rows = 0

    def add(self, file: Path, record: str, numbers: NDArray[np.int64]) -> None:
        """Take in consecutive rows of the table: their file, and the record of each, [rows]."""
        self._starts.append(self.num_rows)
        self._blocks.append((file, record, numbers))
        self.num_rows += len(numbers)

    def where(self, row: int) -> str:
        """Return file and record of a row, as an error names them."""
        block = int(np.searchsorted(self._starts, row, side="right")) - 1
        path, record, numbers = self._blocks[block]
        name = self._names.get(path, str(path))
        return f"{name}, {record} {int(numbers[row - self._starts[block]])}"


def with_urls(error: RcdiagError, files: Sequence[SourceFile]) -> RcdiagError:
    """Return an error with the URLs of files in place of the paths of their copies."""
    message = error.message
    for file in files:
        if file.url:
            message = message.replace(str(file.path), file.url)
    return error if message == error.message else RcdiagError(message, error.hint)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, and where its rows begin in the whole."""

    path: AnyFile  # of several files that are converted to one the first
    num_rows: int
    first_row: int
    converted: Path | None = None  # its rows as parquet, where it is of another format
    url: str = ""  # what `path` is a copy of
    # Where rows stood in the files that were given, where those are of another format.
    origin: RowOrigin | None = field(default=None, compare=False, repr=False)
    # Where some rows are drawn: their numbers in the whole table that they are drawn from, [rows],
    # and the number that the file's first row has there.
    drawn: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    start: int = 0
    # Whether columns or types differ from the table's: those that the file lacks are null there.
    differs: bool = False

    def where(self, row: int) -> str:
        """Return file and row, as an error names them, of a row counted from this file's first."""
        in_path = row if self.drawn is None else int(self.drawn[row]) - self.start
        return f"{self.name}, row {in_path}" if self.origin is None else self.origin.where(in_path)

    @property
    def name(self) -> str:
        """Return the file's name as the user knows it."""
        return without_secrets(self.url) or str(self.path)

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Return the files that were given for its rows."""
        return (SourceFile(self.path, self.url),) if self.origin is None else self.origin.files

    @property
    def parquet(self) -> AnyFile:
        """Return the parquet file that its rows are read from."""
        return self.converted or self.path


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one file in their order, with canonical column names."""

    table: pa.Table
    file: TableFile
    row_in_file: int  # of the first row that was read
    # Which of the rows that were read are in the table, from 0, ascending; None: all of them.
    taken: NDArray[np.int64] | None = None

    @property
    def first_row(self) -> int:
        """Return the number of the first row in the whole table."""
        return self.file.first_row + self.row_in_file

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Return the numbers of the rows in the whole table; None where they follow each other."""
        return None if self.taken is None else self.first_row + self.taken

    def take(self, keep: NDArray[np.bool_]) -> Batch:
        """Return the rows where `keep` [rows] holds."""
        kept = np.flatnonzero(keep)
        taken = kept if self.taken is None else self.taken[kept]
        return Batch(self.table.take(kept), self.file, self.row_in_file, taken)

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(self.table.slice(start, stop - start), self.file, self.row_in_file + start)

    def where(self, row: int) -> str:
        """Return file and row, as an error names them."""
        offset = row if self.taken is None else int(self.taken[row])
        return self.file.where(self.row_in_file + offset)


def picked(table: pa.Table, keep: NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `keep` [rows] holds; runs of neighbours are copied as a whole."""
    edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    runs = edges.reshape(-1, 2).tolist()
    return pa.concat_tables(table.slice(first, end - first) for first, end in runs).combine_chunks()
