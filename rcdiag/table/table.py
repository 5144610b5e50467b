"""A trajectory table is any number of files as one, read in batches, never whole."""

from __future__ import annotations

import contextlib
import hashlib
import html
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, without_secrets
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS
from rcdiag.table.naming import Naming
from rcdiag.table.readers.parquet import open_parquet, read_rows_of, row_groups_of
from rcdiag.table.remote import TAIL, AnyFile, RemoteFile
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile

if TYPE_CHECKING:
    from rcdiag.results import JoinReport


RowRange = tuple[int, int]  # first row and the row after the last, in the whole table
# Runs of neighbouring rows that are cut out of a batch one by one.
MOST_RUNS = 256


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


class RowsOfTable(Struct, frozen=True):
    """Rows that were joined or drawn stand where other tables have them."""

    files: tuple[SourceFile, ...]
    table: Table  # the first of those that were joined, or the one that was drawn from
    rows: NDArray[np.int64]  # numbers in that table, [rows]

    def where(self, row: int) -> str:
        """Return file and record of a row, as an error names them."""
        return self.table.where(int(self.rows[row]))


class Conversion(Struct, frozen=True):
    """What became of a dump."""

    origin: Origin
    policies_of: dict[Path, set[str]]  # file -> the policies whose log-probs its rows have
    tokens: int


@contextlib.contextmanager
def named_by_url(files: Sequence[SourceFile]) -> Iterator[None]:
    """Let errors name files by their URLs in place of the paths of their copies."""
    try:
        yield
    except RcdiagError as error:
        message = error.message
        for file in files:
            if file.url:
                message = message.replace(str(file.path), file.url)
        if message == error.message:
            raise
        raise RcdiagError(message, error.hint) from error


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, and where its rows begin in the whole."""

    path: AnyFile  # of several files that are converted to one the first
    num_rows: int
    first_row: int
    converted: Path | None = None  # its rows as parquet, where it is of another format
    url: str = ""  # what `path` is a copy of
    # Where rows stood in the files that were given, where those are others.
    origin: RowOrigin | None = field(default=None, compare=False, repr=False)
    # Whether columns or types differ from the table's: those that the file lacks are null there.
    differs: bool = False

    def where(self, row: int) -> str:
        """Return file and row, as an error names them, of a row counted from this file's first."""
        return f"{self.name}, row {row}" if self.origin is None else self.origin.where(row)

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
class RowBatch:
    """Some rows of a table in their order, with canonical column names."""

    table: pa.Table
    numbers: NDArray[np.int64]  # of the rows in the whole table, ascending, [rows]
    dump: Table  # whose rows they are

    @property
    def first_row(self) -> int:
        """Return the number of the first row in the whole table; 0 where there is no row."""
        return int(self.numbers[0]) if len(self.numbers) else 0

    def take(self, keep: NDArray[np.bool_]) -> RowBatch:
        """Return the rows where `keep` [rows] holds."""
        kept = np.flatnonzero(keep)
        return RowBatch(_rows_at(self.table, kept), self.numbers[kept], self.dump)

    def slice(self, start: int, stop: int) -> RowBatch:
        table = self.table.slice(start, stop - start)
        return RowBatch(table, self.numbers[start:stop], self.dump)

    def where(self, row: int) -> str:
        """Return file and row, as an error names them."""
        return self.dump.where(int(self.numbers[row]))


def _rows_at(table: pa.Table, places: NDArray[np.integer]) -> pa.Table:
    """Return the rows at some places, ascending; neighbours are cut out as a whole.

    Arrow's `take`, which imports all of its compute functions (0.1 s), is for many runs of them.
    """
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    if len(runs) > MOST_RUNS:
        return table.take(places)
    parts = [table.slice(int(run[0]), len(run)) for run in runs if len(run)]
    return pa.concat_tables(parts).combine_chunks() if len(parts) > 1 else (parts or [table[:0]])[0]


class RowGroupOfTable(NamedTuple):
    """A row group of one of the files, which is read as a whole."""

    first: int  # number of its first row in the whole table
    end: int  # and of the row after its last
    tokens: int  # of responses; a row counts one at least


@dataclass(frozen=True, repr=False)
class Table:
    """A trajectory table on disk; one row is one sampled response."""

    files: tuple[TableFile, ...]
    schema: pa.Schema  # with canonical names
    renames: Mapping[str, str]  # canonical name -> name in the file
    scratch: Scratch | None = field(default=None, compare=False)
    drawn_from: Table | None = None  # the table that has more rows, where some of them are drawn
    # The numbers of drawn rows in that table, [rows].
    drawn: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    # The table that the user gave, of which this one is a scored copy, or a join with others.
    made_from: Table | None = field(default=None, compare=False)
    given_as: tuple[str, ...] = field(default=(), compare=False)  # the sources, in a user's words
    # Values that the user gave for all rows, which the files do not hold.
    given: Mapping[str, Any] = field(default_factory=dict)
    conversion: Conversion | None = field(default=None, compare=False)
    joined: JoinReport | None = field(default=None, compare=False)  # of dumps of one run
    naming: Naming = field(default_factory=Naming, compare=False)  # which names rcdiag chose itself
    absent: frozenset[str] = frozenset()  # columns of the files that are null in every row

    @property
    def name(self) -> str:
        """Return the name of the table's first file, as a message names the table."""
        return self.files[0].sources[0].name

    @property
    def as_given(self) -> Table:
        """Return the table that the user gave: provenance, rows and commands to copy name it."""
        return self.made_from or self

    @property
    def on_command_line(self) -> str:
        """Return the sources as a command line names them."""
        return " ".join(shlex.quote(source) for source in self.given_as or (self.name,))

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Return all files that were given, in the order of their rows."""
        return tuple(source for file in self.files for source in file.sources)

    @property
    def parquets(self) -> list[AnyFile]:
        """Return the parquet files that the rows are read from, in order."""
        return [file.parquet for file in self.files]

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def columns(self) -> list[str]:
        """Return the names of all columns, by which rcdiag knows them."""
        return list(self.schema.names)

    @property
    def policies(self) -> list[str]:
        """Return the policies that have log-probs, in the order of the columns."""
        return columns.policies_in(self.schema.names)

    def __repr__(self) -> str:
        others = len(self.sources) - 1
        more = f" and {others} more files" if others else ""
        lines = [
            f"Table of {self.num_rows:,} rows: {self.name}{more}",
            f"  policies: {', '.join(self.policies) or 'none'}",
            f"  columns:  {', '.join(self.columns)}",
        ]
        if self.naming.taken:
            lines.append(f"  names:    {self.naming.sentence()}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Return what earlier runs of rcdiag, or other programs, wrote about the table."""
        try:
            return columns.metadata_of(self.schema)
        except ValueError as error:
            raise RcdiagError(
                f"{self.name}: the file metadata `rcdiag` cannot be read ({error})",
                hint="remove that key from the file's metadata, or score the original table again",
            ) from error

    @cached_property
    def fingerprint(self) -> str:
        """Hash the bytes of all parquet files that the rows are read from, in order.

        Those are the files as they were given, or what rcdiag made of another format, of joined
        tables, or of drawn rows. That has a quarter of the bytes of many a trainer's dump.

        Of a file behind a URL size, version (S3's ETag) and footer are hashed, so that its bytes
        are not fetched for this: a copy on disk has another fingerprint.
        """
        digest = hashlib.blake2b(digest_size=16)
        for path in self.parquets:
            if isinstance(path, RemoteFile):
                digest.update(
                    repr((path.mark, path.read(max(path.size - TAIL, 0), path.size))).encode()
                )
                continue
            with path.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
        return digest.hexdigest()

    def for_workers(self) -> Table:
        """Return the table as other processes read it.

        It lacks the temporary folder, which ends with this process, and how the table was made.
        """
        return replace(
            self, scratch=None, drawn_from=None, made_from=None, conversion=None, joined=None
        )

    def where(self, row: int) -> str:
        """Return file and row, as an error names them, of a row of the whole table."""
        file = self.file_of(row)
        return file.where(row - file.first_row)

    def file_of(self, row: int) -> TableFile:
        """Return the file that holds a row of the whole table."""
        return next(file for file in self.files if row < file.first_row + file.num_rows)

    def number(self, row: int) -> int:
        """Return the number of a row in the table that the user named, where rows are drawn."""
        return row if self.drawn is None else int(self.drawn[row])

    def require(self, *names: str) -> None:
        """Refuse a table that lacks one of the columns, and name all that it lacks."""
        for name in names:
            if name in self.absent:
                raise RcdiagError(
                    f"{self.name}: column `{name}` is null in all {self.num_rows:,} rows",
                    hint="it was not recorded; another policy may be named in its place",
                )
        if any(name not in self.schema.names for name in names):
            missing.check_columns(names, self._own_schema, self.renames, self.name, self.naming)

    def may_mean(self, *names: str) -> dict[str, str]:
        """Return for columns that the table lacks its own columns whose names say the same."""
        lacking = {
            name: name
            for name in names
            if name not in self.schema.names and name not in self.naming.off
        }
        return missing.meant_columns(
            lacking, self._own_schema, self.renames, self.naming, least=1.0
        )

    @property
    def unread(self) -> dict[str, str]:
        """Return optional columns that numbers depend on and the table lacks, with their likes."""
        return self.may_mean("group_id", "response_mask")

    def policy_of(self, column: str) -> str | None:
        """Return a name for the policy whose log-probs a column holds that is read as nothing."""
        free = column in self.columns and columns.column_spec(column) is None
        if not (free and columns.TOKEN_FLOATS.accepts(self.schema.field(column).type)):
            return None
        policy = LOOKS_LIKE_LOG_PROBS.sub("", column).strip("_-")
        return column if policy in self.policies else policy or "recorded"

    def has_text(self, column: str) -> bool:
        """Tell whether the table has a column of that name that holds texts."""
        if column not in self.columns:
            return False
        kind = self.schema.field(column).type
        return bool(pt.is_string(kind) or pt.is_large_string(kind))

    @property
    def _own_schema(self) -> pa.Schema:
        """Return the schema with the names that the columns have in the files."""
        return pa.schema(
            [field.with_name(self.renames.get(field.name, field.name)) for field in self.schema]
        )

    def batches(
        self,
        names: Sequence[str] | None = None,
        between: RowRange | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> Iterator[RowBatch]:
        """Yield the rows of the table in order, all of them or some.

        `names` are canonical, None means every column. `between` takes the rows from one number to
        the one before another, `rows` those of these numbers, ascending. No row group is read that
        has none of the rows that are wanted.
        """
        wanted = list(self.schema.names if names is None else names)
        for file in self.files:
            own = None  # the rows that are wanted, counted from the file's first
            if between is not None:
                first, end = np.clip(np.array(between) - file.first_row, 0, file.num_rows)
                own = np.arange(first, end)
            if rows is not None:
                own = rows[np.searchsorted(rows, file.first_row) :] - file.first_row
                own = own[: np.searchsorted(own, file.num_rows)]
            if own is not None and not len(own):
                continue
            for table, inside in self._read(file, wanted, own):
                numbers = file.first_row + inside
                if self.given:
                    table = given_values.filled(table, self.given, numbers)
                batch = RowBatch(table.select(wanted), numbers, self)
                table = columns.with_versions_as_numbers(batch.table)
                table = columns.with_steps_as_numbers(table, batch.where)
                yield replace(batch, table=table)

    def _read(
        self, file: TableFile, names: Sequence[str], rows: NDArray[np.int64] | None
    ) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """Yield rows of a file with their numbers in it, [rows].

        They are `rows`, ascending, and of the row groups those are read that hold one of them;
        None: all rows.
        """
        # At least one column, for the number of rows; what is given for all rows is in no file.
        free = {given_values.column_of(name) for name in self.given} - self._in_files
        read = [name for name in names if name not in free] or ["response_ids"]
        stored = [self.renames.get(name, name) for name in read]
        if file.differs:  # it may lack all of them
            stored = list(dict.fromkeys([*stored, self._tokens]))
        back = {in_file: name for name, in_file in self.renames.items()}
        in_groups, groups = None, None
        if rows is not None:
            bounds = np.cumsum([0, *(group.num_rows for group in row_groups_of(file.parquet))])
            groups = np.unique(np.searchsorted(bounds, rows, side="right") - 1).tolist()
            in_groups = np.concatenate([np.arange(bounds[n], bounds[n + 1]) for n in groups])
        end = 0
        for record in read_rows_of(file.parquet, stored, self._tokens, groups):
            here, end = slice(end, end + record.num_rows), end + record.num_rows
            numbers = np.arange(here.start, here.stop) if in_groups is None else in_groups[here]
            table = pa.Table.from_batches([record])
            table = table.rename_columns([back.get(name, name) for name in table.column_names])
            if file.differs:
                schema = pa.schema([self.schema.field(name) for name in read])
                table = columns.conformed(table, schema)
            if rows is not None and len(numbers):
                inside = rows[slice(*np.searchsorted(rows, (numbers[0], numbers[-1] + 1)))]
                table, numbers = _rows_at(table, np.searchsorted(numbers, inside)), inside
            if len(numbers):
                yield table, numbers

    @property
    def response_tokens(self) -> int:
        """Return the response tokens that footers tell; a row counts one at least."""
        return sum(group.tokens for group in self.row_groups())

    def row_groups(self) -> list[RowGroupOfTable]:
        """Return the row groups of all files, in the order of their rows, read off the footers."""
        groups = []
        for file in self.files:
            first = file.first_row
            for group in row_groups_of(file.parquet):
                tokens = sum(
                    chunk.num_values for chunk in group.columns if chunk.column == self._tokens
                )
                groups.append(RowGroupOfTable(first, first + group.num_rows, tokens))
                first += group.num_rows
        return groups

    @property
    def _tokens(self) -> str:
        """Return the name that the files have for the column of response tokens."""
        return self.renames.get("response_ids", "response_ids")

    @cached_property
    def _in_files(self) -> set[str]:
        """Return the canonical names of the columns that the files have."""
        back = {in_file: name for name, in_file in self.renames.items()}
        files = [file for number, file in enumerate(self.files) if number == 0 or file.differs]
        own = [name for file in files for name in open_parquet(file.parquet).schema_arrow.names]
        return {back.get(name, name) for name in own}
