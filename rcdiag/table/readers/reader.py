"""A reader is a format of dumps, and turns its files into rows of the trajectory table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A format that a dump may have on disk."""

    name: str
    says: str
    patterns: tuple[str, ...]  # names of its files in a folder: "*.parquet"
    detect: Callable[[Sequence[Path]], bool]  # whether all these files, none empty, are of it
    # The rows of one file in their order, a few MB at a time, all batches with one schema: columns
    # under the names and types of `rcdiag.table.schema`, others as they are, and whatever is known
    # of the policies in the schema's metadata. None: the file is a parquet table already.
    read: Callable[[Path], Iterator[pa.RecordBatch]] | None
