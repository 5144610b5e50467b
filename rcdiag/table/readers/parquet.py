"""Parquet is the table's own format: how a file is recognised, opened and read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.footer import MAGIC, EncryptedError, FooterError, RowGroup, read_footer
from rcdiag.table.readers.reader import Reader
from rcdiag.table.remote import AnyFile, RemoteFile
from rcdiag.table.schema import KEPT_IDS

# Rows are read in batches of about this many response tokens: a few dozen MB with all columns.
TOKENS_PER_BATCH = 500_000
MAX_ROWS_PER_BATCH = 16_384
KEPT_PER_TOKEN = 16  # kept ids that a batch holds for each of its tokens at most
# Bytes of each column that are read from a disk at a time. Else all of a column's bytes in a row
# group stand in memory while it is read, and a file may be one row group. Of object storage they
# are read at once, since every request takes its time.
READ_AT_ONCE = 1 << 18
# Errors of damaged bytes; a size that is damaged exhausts memory.
DAMAGE = (FooterError, pa.ArrowException, OSError, MemoryError, UnicodeError, OverflowError)


PARQUET = Reader(
    name="parquet",
    says="Parquet files with the columns of the trajectory table.",
    patterns=("*.parquet",),
    # By name, so that damage is reported as such, else by first bytes.
    detect=lambda peek: peek.path.suffix == ".parquet" or peek.head.startswith(MAGIC),
    read=None,
    any_names=True,
    grouped_by_order=True,
)


def open_parquet(path: AnyFile) -> pq.ParquetFile:
    """Open a file with its footer read; a file that is none, or is cut off, is refused.

    Pages with a checksum are compared with it when they are read.
    """
    try:
        with path.open("rb") as stream:
            begins_well = stream.read(len(MAGIC)) == MAGIC
        if not begins_well:
            raise RcdiagError(
                f"{path}: not a parquet file (it does not begin with PAR1)",
                hint="write the dump as parquet, for example polars.read_ndjson(...).write_parquet",
            )
        read_footer(path)
        # Pre-buffering holds on to all that was read; a memory map counts as resident all it read.
        file = pq.ParquetFile(
            path.open() if isinstance(path, RemoteFile) else path,
            buffer_size=0 if isinstance(path, RemoteFile) else READ_AT_ONCE,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        names = file.schema_arrow.names
    except EncryptedError as error:
        raise RcdiagError(
            f"{path}: an encrypted parquet file ({error})",
            hint="write it again without encryption; rcdiag takes no keys",
        ) from error
    except DAMAGE as error:
        raise _damaged(path, error) from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RcdiagError(
            f"{path}: several columns are called `{twice[0]}`",
            hint="rename or drop all but one of them",
        )
    return file


def read_rows_of(
    path: AnyFile,
    columns: Sequence[str],
    tokens_column: str,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file, about TOKENS_PER_BATCH values of `tokens_column` at a time.

    `row_groups` are those that are read; None means all. Damage behind a good footer shows only
    here.
    """
    file = open_parquet(path)
    row = 0
    try:
        size = rows_per_batch(path, tokens_column)
        for record in _of_size(file.iter_batches(size, row_groups, columns=columns), size):
            record.validate(full=True)  # offsets that go back, text that is not UTF-8
            yield record
            row += record.num_rows
        if isinstance(path, RemoteFile):
            path.check_unchanged()
    except DAMAGE as error:
        raise _damaged(path, error, f", after row {row}") from error


def _of_size(records: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Join records so that all but the last have `size` rows.

    Arrow cuts a batch where a row group ends if a column is stored as a dictionary. Batches must
    not depend on that, as whoever reads a part of a file reads the same batches.
    """
    held: list[pa.RecordBatch] = []
    for record in itertools.chain(records, [None]):
        held += [] if record is None else [record]
        if held and (record is None or sum(one.num_rows for one in held) >= size):
            if len(held) > 1:  # dictionaries of a column become one
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


def row_groups_of(path: AnyFile) -> list[RowGroup]:
    """Return what the footer of a file says of its row groups; a damaged one is refused."""
    try:
        return read_footer(path)
    except (FooterError, OSError) as error:
        raise _damaged(path, error) from error


def rows_per_batch(path: AnyFile, tokens_column: str) -> int:
    """Return how many rows hold about TOKENS_PER_BATCH tokens, from the footer alone.

    They are fewer where kept sets are large, whether these are read or not: batches are the same
    for whoever reads a file.
    """
    groups = row_groups_of(path)
    values: dict[str, int] = {}
    for chunk in (chunk for group in groups for chunk in group.columns):
        values[chunk.column] = values.get(chunk.column, 0) + chunk.num_values
    kept = max((size for name, size in values.items() if KEPT_IDS.fullmatch(name)), default=0)
    tokens = max(values.get(tokens_column, 0), kept / KEPT_PER_TOKEN)
    per_row = max(tokens / max(sum(group.num_rows for group in groups), 1), 1.0)
    return int(min(max(TOKENS_PER_BATCH / per_row, 1), MAX_ROWS_PER_BATCH))


def _damaged(path: AnyFile, error: Exception, where: str = "") -> RcdiagError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return RcdiagError(
        f"{path}{where}: damaged or truncated parquet file ({reason})",
        hint="its writer did not finish or the copy broke off; copy or write it again",
    )


def first_rows_of(path: AnyFile, columns: Sequence[str], rows: int) -> pa.Table:
    """Return the first rows of a file, at most `rows`, with some of its columns."""
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
    """Return the length of a column's lists, where that of the first `rows` rows may be one alone.

    Only the footer is looked at. None says that the lists have different lengths, or that there
    are not two rows.
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
