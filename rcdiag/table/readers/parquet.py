"""Parquet is the table's own format: how a file is recognised, opened and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Reader

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAGIC = b"PAR1"

# Rows are read in batches of about this many response tokens: a few dozen MB with all columns.
TOKENS_PER_BATCH = 1_000_000
MAX_ROWS_PER_BATCH = 16_384


def _is_parquet(peek: Peek) -> bool:
    """Recognise parquet by name, so that damage is reported as such, else by first bytes."""
    return peek.path.suffix == ".parquet" or peek.head.startswith(MAGIC)


def _begins_well(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


PARQUET = Reader(
    name="parquet",
    says="Parquet files with the columns of the trajectory table.",
    patterns=("*.parquet",),
    detect=_is_parquet,
    read=None,
    grouped_by_order=True,
)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file with its footer read; a file that is none, or is cut off, is refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not _begins_well(path):
            raise RcdiagError(
                f"{path}: not a parquet file (it does not begin with PAR1)",
                hint="write the dump as parquet, for example polars.read_ndjson(...).write_parquet",
            )
        # Pre-buffering holds on to all that was read; a memory map counts as resident all it read.
        return pq.ParquetFile(path, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error) from error


def read_rows_of(
    path: Path,
    columns: Sequence[str],
    tokens_column: str,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, about TOKENS_PER_BATCH values of `tokens_column` at a time.

    `row_groups` are those that are read; None means all. Damage behind a good footer shows only
    here.
    """
    import pyarrow as pa

    file = open_parquet(path)
    row = 0
    try:
        size = _rows_per_batch(file, tokens_column)
        for record in file.iter_batches(size, row_groups, columns=columns):
            yield record
            row += record.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error, f", after row {row}") from error


def _rows_per_batch(file: pq.ParquetFile, tokens_column: str) -> int:
    """Return how many rows hold about TOKENS_PER_BATCH tokens, from the footer alone."""
    metadata = file.metadata
    tokens = sum(
        group.column(index).num_values
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for index in range(group.num_columns)
        if group.column(index).path_in_schema.split(".")[0] == tokens_column
    )
    per_row = max(tokens / max(metadata.num_rows, 1), 1.0)
    return int(min(max(TOKENS_PER_BATCH / per_row, 1), MAX_ROWS_PER_BATCH))


def _damaged(path: Path, error: Exception, where: str = "") -> RcdiagError:
    return RcdiagError(
        f"{path}{where}: damaged or truncated parquet file ({str(error).splitlines()[0]})",
        hint="its writer did not finish or the copy broke off; copy or write it again",
    )
