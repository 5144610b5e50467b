"""Parquet, the table's own format: how files are recognised, opened and read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import rows_at
from rcdiag.table.readers.footer import MAGIC, EncryptedError, FooterError, RowGroup, row_groups
from rcdiag.table.readers.reader import Reader
from rcdiag.table.remote import AnyFile, RemoteFile
from rcdiag.table.schema import KEPT_IDS

# Rows are read in batches of about this many response tokens: a few dozen MB with all columns.
TOKENS_PER_BATCH = 500_000
MAX_ROWS_PER_BATCH = 16_384
KEPT_PER_TOKEN = 16  # at most this many kept ids per token of a batch, on average
# Bytes of a column that are read from disk at a time. Otherwise the whole column of a row group
# would be in memory, and a file may be a single row group. From object storage it is read at once,
# since every request takes time.
READ_AT_ONCE = 1 << 18
ENCRYPTED_MAGIC = b"PARE"
# Bytes after the footer: its length and the magic number.
TAIL = 8
# Errors that damaged bytes cause; a damaged size may exhaust memory.
DAMAGE = (pa.ArrowException, OSError, MemoryError, UnicodeError, OverflowError)


PARQUET = Reader(
    name="parquet",
    says="Parquet files with the columns of the trajectory table.",
    patterns=("*.parquet",),
    # By name, so that damage is reported, else by magic bytes.
    detect=lambda peek: peek.path.suffix == ".parquet" or peek.head.startswith(MAGIC),
    read=None,
    any_names=True,
    grouped_by_order=True,
)


def open_parquet(path: AnyFile) -> pq.ParquetFile:
    """Open a file and read its footer; an error if it is not parquet or is truncated.

    Pages with a checksum are verified when they are read.
    """
    try:
        with path.open("rb") as stream:
            begins_well = stream.read(len(MAGIC)) == MAGIC
        if not begins_well:
            raise RcdiagError(
                f"{path}: not a parquet file (it does not begin with PAR1)",
                hint="write the dump as parquet, for example polars.read_ndjson(...).write_parquet",
            )
        row_groups_of(path)  # a footer that would end the process is refused
        # Pre-buffering keeps all that was read; a memory map counts as resident memory.
        file = pq.ParquetFile(
            path.open() if isinstance(path, RemoteFile) else path,
            buffer_size=0 if isinstance(path, RemoteFile) else READ_AT_ONCE,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        names = file.schema_arrow.names
    except DAMAGE as error:
        raise _damaged(path, error) from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RcdiagError(
            f"{path}: several columns are called `{twice[0]}`",
            hint="rename or drop all but one of them",
        )
    return file


def row_groups_of(path: AnyFile) -> tuple[RowGroup, ...]:
    """Return what a file's footer says about its row groups.

    Raises:
        RcdiagError: Arrow could not read the footer safely, or the file has encrypted columns.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(size - TAIL, 0))
            tail = stream.read(TAIL)
            if tail.endswith(ENCRYPTED_MAGIC):
                raise EncryptedError("its footer is encrypted")
            if not tail.endswith(MAGIC) or len(tail) < TAIL:
                raise FooterError("it does not end with PAR1")
            length = int.from_bytes(tail[:4], "little")
            if length > size - TAIL - len(MAGIC):
                raise FooterError("the stated length of its footer exceeds the file")
            stream.seek(size - TAIL - length)
            content = stream.read(length)
        return row_groups(content, size - TAIL - length)
    except EncryptedError as error:
        raise RcdiagError(
            f"{path}: an encrypted parquet file ({error})",
            hint="write it again without encryption; rcdiag does not accept keys",
        ) from error
    except (FooterError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: AnyFile, error: Exception, where: str = "") -> RcdiagError:
    """Return the error for a file that cannot be read, from what its reader raised."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return RcdiagError(
        f"{path}{where}: damaged or truncated parquet file ({reason})",
        hint="its writer or a copy did not finish; copy or write it again",
    )


def read_rows_of(
    path: AnyFile,
    columns: Sequence[str],
    tokens_column: str,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """Yield rows of one file with their numbers, about TOKENS_PER_BATCH tokens at a time.

    `tokens_column` is the column of the tokens. `rows` selects row numbers (ascending, not empty);
    None means all. Only row groups that hold a selected row are read. Damage outside of the footer
    is found only here.
    """
    file, groups = open_parquet(path), row_groups_of(path)
    chosen, in_chosen = None, None
    if rows is not None:
        bounds = np.cumsum([0, *(group.num_rows for group in groups)])
        chosen = np.unique(np.searchsorted(bounds, rows, side="right") - 1).tolist()
        in_chosen = np.concatenate([np.arange(bounds[n], bounds[n + 1]) for n in chosen])
    end = 0
    try:
        size = rows_per_batch(groups, tokens_column)
        for record in _of_size(file.iter_batches(size, chosen, columns=columns), size):
            record.validate(full=True)  # finds decreasing offsets, and text that is not UTF-8
            here, end = slice(end, end + record.num_rows), end + record.num_rows
            numbers = np.arange(here.start, here.stop) if in_chosen is None else in_chosen[here]
            table = pa.Table.from_batches([record])
            if rows is not None and len(numbers):
                inside = rows[slice(*np.searchsorted(rows, (numbers[0], numbers[-1] + 1)))]
                table, numbers = rows_at(table, np.searchsorted(numbers, inside)), inside
            if len(numbers):
                yield table, numbers
        if isinstance(path, RemoteFile):
            path.check_unchanged()
    except DAMAGE as error:
        raise _damaged(path, error, f", after row {end}") from error


def _of_size(records: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Combine record batches so that all but the last have exactly `size` rows.

    Arrow ends a batch at the end of a row group if a column is dictionary-encoded. Batches must not
    depend on that, so that reading a part of a file gives the same batches as reading all of it.
    """
    held: list[pa.RecordBatch] = []
    for record in itertools.chain(records, [None]):
        held += [] if record is None else [record]
        if held and (record is None or sum(one.num_rows for one in held) >= size):
            if len(held) > 1:  # the batches of a column may have different dictionaries
                table = pa.Table.from_batches(held).unify_dictionaries().combine_chunks()
                held = table.to_batches()
            yield held[0]
            held = []


def read_whole(
    path: AnyFile, columns: Sequence[str] | None = None, group: int | None = None
) -> pa.Table:
    """Return a small file, or one row group of a file, as an Arrow table."""
    file = open_parquet(path)
    wanted = None if columns is None else list(columns)
    try:
        table = file.read(wanted) if group is None else file.read_row_group(group, wanted)
        table.validate(full=True)
    except DAMAGE as error:
        raise _damaged(path, error) from error
    return table


def rows_per_batch(groups: Sequence[RowGroup], tokens_column: str) -> int:
    """Return how many rows of a file have about TOKENS_PER_BATCH tokens, from its footer.

    There are fewer if kept sets are large, whether these are read or not, so that batches do not
    depend on the columns that are read.
    """
    values: dict[str, int] = {}
    for chunk in (chunk for group in groups for chunk in group.columns):
        values[chunk.column] = values.get(chunk.column, 0) + chunk.num_values
    kept = max((size for name, size in values.items() if KEPT_IDS.fullmatch(name)), default=0)
    tokens = max(values.get(tokens_column, 0), kept / KEPT_PER_TOKEN)
    per_row = max(tokens / max(sum(group.num_rows for group in groups), 1), 1.0)
    return int(min(max(TOKENS_PER_BATCH / per_row, 1), MAX_ROWS_PER_BATCH))


def first_rows_of(path: AnyFile, columns: Sequence[str], rows: int) -> pa.Table:
    """Return at most the first `rows` rows of a file, with some of its columns."""
    file = open_parquet(path)
    if not columns:
        return pa.table({})
    try:
        groups: list[int] = []
        count = 0
        while count < rows and len(groups) < file.metadata.num_row_groups:
            count += file.metadata.row_group(len(groups)).num_rows
            groups.append(len(groups))
        records = file.iter_batches(rows, groups, columns=list(columns))
        held = list(itertools.islice(records, 1))
        for record in held:
            record.validate(full=True)
    except DAMAGE as error:
        raise _damaged(path, error) from error
    schema = pa.schema([file.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(held).select(columns) if held else schema.empty_table()


def width_of_first_rows(groups: Sequence[RowGroup], column: str, rows: int) -> int | None:
    """Return the common length of a column's lists if the first `rows` rows may all have it.

    Only the footer is read. None means that lengths certainly differ, or that there are fewer than
    two rows.
    """
    width, count = None, 0
    for group in groups:
        if count >= rows:
            break
        if not group.num_rows:
            continue
        values = next(chunk.num_values for chunk in group.columns if chunk.column == column)
        if values % group.num_rows or width not in (None, values // group.num_rows):
            return None
        width, count = values // group.num_rows, count + group.num_rows
    return width if count > 1 else None
