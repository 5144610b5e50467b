"""Where the rows of a table stood in the files that a user gave, as errors name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.sources import SourceFile


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
