"""The trajectory table: one or more files that are read in batches of rows, never all at once."""

from __future__ import annotations

import contextlib
import hashlib
import html
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.formats import listed
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.arrow import as_numpy, rows_at
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS
from rcdiag.table.naming import OF_PROMPTS, Naming
from rcdiag.table.readers.parquet import open_parquet, read_rows_of, read_whole, row_groups_of
from rcdiag.table.remote import TAIL, AnyFile, RemoteFile
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile

if TYPE_CHECKING:
    from rcdiag.results import JoinReport


RowRange = tuple[int, int]  # first row and the row after the last, in the whole table


class Origin:
    """For each row of a converted table, its file and record in the dump that the user gave."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        self._names = {file.path: file.name for file in files}
        self._blocks: list[tuple[Path, str, NDArray[np.int64]]] = []
        self._starts: list[int] = []
        self.num_rows = 0

    def add(self, file: Path, record: str, numbers: NDArray[np.int64]) -> None:
        """Append consecutive rows of the table: their file and record numbers [rows]."""
        self._starts.append(self.num_rows)
        self._blocks.append((file, record, numbers))
        self.num_rows += len(numbers)

    def where(self, row: int) -> str:
        """Return the file and record of a row, for error messages."""
        block = int(np.searchsorted(self._starts, row, side="right")) - 1
        path, record, numbers = self._blocks[block]
        name = self._names.get(path, str(path))
        return f"{name}, {record} {int(numbers[row - self._starts[block]])}"


class RowsOfTable(Struct, frozen=True):
    """Maps rows of a joined or sampled table to the rows of the table that they come from."""

    files: tuple[SourceFile, ...]
    table: Table  # the first of the joined tables, or the table that rows were sampled from
    rows: NDArray[np.int64]  # numbers in that table, [rows]

    def where(self, row: int) -> str:
        """Return the file and record of a row, for error messages."""
        return self.table.where(int(self.rows[row]))


class Conversion(Struct, frozen=True):
    """What the conversion of a dump produced: row origins, policies by file, number of tokens."""

    origin: Origin
    policies_of: dict[Path, set[str]]  # file -> policies that have log-probs in it
    tokens: int


@contextlib.contextmanager
def named_by_url(files: Sequence[SourceFile]) -> Iterator[None]:
    """In error messages, replace the path of a local copy by the URL of the file."""
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
    """One file of a table, and the number of its first row within the table."""

    source: SourceFile  # the first file, if several were converted to one
    num_rows: int
    first_row: int
    converted: Path | None = None  # the same rows as parquet, if the source has another format
    # All files that the user gave for these rows, if they are not those of the source.
    origin: Origin | RowsOfTable | None = field(default=None, compare=False, repr=False)
    # True if columns or types differ from the table's; columns that the file lacks are then null.
    differs: bool = False

    def where(self, row: int) -> str:
        """Return the file and row for error messages; `row` counts from this file's first row."""
        return f"{self.source.name}, row {row}" if self.origin is None else self.origin.where(row)

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Return the files that the user gave for these rows."""
        return (self.source,) if self.origin is None else self.origin.files

    @property
    def parquet(self) -> AnyFile:
        """Return the parquet file from which the rows are read."""
        return self.converted or self.source.path


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive or selected rows of a table, in order, with canonical column names."""

    table: pa.Table
    numbers: NDArray[np.int64]  # row numbers within the table, ascending, [rows]
    dump: Table  # the table that the rows belong to

    @property
    def first_row(self) -> int:
        """Return the number of the first row within the table; 0 if the batch is empty."""
        return int(self.numbers[0]) if len(self.numbers) else 0

    def take(self, keep: NDArray[np.bool_]) -> RowBatch:
        """Return the rows where `keep` [rows] is true."""
        kept = np.flatnonzero(keep)
        return RowBatch(rows_at(self.table, kept), self.numbers[kept], self.dump)

    def with_log_probs(self, policies: Sequence[str]) -> RowBatch:
        """Return the rows that have log-probs of all policies."""
        columns = [self.table[f"{policy}_log_probs"] for policy in policies]
        if not any(column.null_count for column in columns):
            return self
        return self.take(np.logical_and.reduce([as_numpy(one.is_valid()) for one in columns]))

    def slice(self, start: int, stop: int) -> RowBatch:
        table = self.table.slice(start, stop - start)
        return RowBatch(table, self.numbers[start:stop], self.dump)

    def where(self, row: int) -> str:
        """Return the file and row for error messages."""
        return self.dump.where(int(self.numbers[row]))


class RowGroupOfTable(NamedTuple):
    """A row group of one of the files: the smallest unit that can be read."""

    first: int  # number of its first row within the table
    end: int  # number of its last row, plus 1
    tokens: int  # response tokens; an empty response counts as one


@dataclass(frozen=True, repr=False)
class Table:
    """A trajectory table on disk; one row is one sampled response."""

    files: tuple[TableFile, ...]
    schema: pa.Schema  # with canonical names
    renames: Mapping[str, str]  # canonical name -> name in the file
    scratch: Scratch | None = field(default=None, compare=False)
    drawn_from: Table | None = None  # the whole table, if these rows are a sample of it
    # The row numbers of the sampled rows in that table, [rows].
    drawn: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    # The table that the user gave, if this one is a scored copy of it or a join with others.
    made_from: Table | None = field(default=None, compare=False)
    given_as: tuple[str, ...] = field(
        default=(), compare=False
    )  # the sources as the user wrote them
    # Values that the user gave for all rows and that are not in the files.
    given: Mapping[str, Any] = field(default_factory=dict)
    conversion: Conversion | None = field(default=None, compare=False)
    joined: JoinReport | None = field(default=None, compare=False)  # set if dumps were joined
    naming: Naming = field(default_factory=Naming, compare=False)  # renames that rcdiag chose
    absent: frozenset[str] = frozenset()  # columns that are null in every row

    @property
    def name(self) -> str:
        """Return the name of the first file, by which messages name the table."""
        return self.files[0].sources[0].name

    @property
    def as_given(self) -> Table:
        """Return the table that the user gave, for provenance, row numbers and commands."""
        return self.made_from or self

    @property
    def title(self) -> str:
        """Return the first source as the user wrote it, and the number of the others."""
        return listed(self.given_as or [source.name for source in self.sources])

    @property
    def on_command_line(self) -> str:
        """Return the sources, quoted for a command line."""
        return " ".join(shlex.quote(source) for source in self.given_as or (self.name,))

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Return all files that the user gave, in the order of their rows."""
        return tuple(source for file in self.files for source in file.sources)

    @property
    def parquets(self) -> list[AnyFile]:
        """Return the parquet files from which the rows are read, in order."""
        return [file.parquet for file in self.files]

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def columns(self) -> list[str]:
        """Return the canonical names of all columns."""
        return list(self.schema.names)

    @property
    def policies(self) -> list[str]:
        """Return the policies that have log-probs, in the order of the columns."""
        return columns.policies_in(self.schema.names)

    def __repr__(self) -> str:
        files = listed([source.name for source in self.sources])
        lines = [
            f"Table of {self.num_rows:,} rows: {files}",
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
        """Return the JSON under the metadata key `rcdiag`, from earlier runs or other programs."""
        return columns.metadata_of(self.schema, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """Hash the bytes of all parquet files from which the rows are read, in order.

        If the user gave another format, several dumps to join, or a sample of rows, these are the
        files that rcdiag wrote; they are often a quarter as large as the dump.

        For a file behind a URL, its size, version (ETag on S3) and footer are hashed, to avoid a
        download. Its fingerprint therefore differs from that of a local copy.
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

    @cached_property
    def null_rows(self) -> Mapping[str, NDArray[np.int64]]:
        """Return the numbers of the rows in which a policy's log-probs are null, ascending.

        Policies without such rows are left out. Most footers record that a column has no nulls;
        only other columns are read, once for the table.
        """
        found = {
            policy: np.concatenate([rows for _, rows in self._nulls_of(f"{policy}_log_probs")])
            for policy in self.policies
        }
        return {policy: rows for policy, rows in found.items() if len(rows)}

    def is_null(self, column: str) -> bool:
        """Tell whether a column of lists is null in every row; read up to the first value."""
        own = self.renames.get(column, column)
        groups = (group for file in self.files for group in row_groups_of(file.parquet))
        chunks = (chunk for group in groups for chunk in group.columns if chunk.column == own)
        if any(chunk.null_count not in (None, chunk.num_values) for chunk in chunks):
            return False  # according to a footer, some rows have values
        return all(len(rows) == size for size, rows in self._nulls_of(column))

    def _nulls_of(self, column: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield, for each row group, its number of rows, and the numbers of its null rows."""
        own = self.renames.get(column, column)
        for file in self.files:
            first = file.first_row
            for number, group in enumerate(row_groups_of(file.parquet)):
                chunks = [chunk for chunk in group.columns if chunk.column == own]
                null = np.full(group.num_rows, not chunks)  # all, if the file has no such column
                if any(chunk.null_count != 0 for chunk in chunks):
                    values = read_whole(file.parquet, [own], number)[own]
                    null = as_numpy(values.is_null())
                yield group.num_rows, first + np.flatnonzero(null)
                first += group.num_rows

    def for_workers(self) -> Table:
        """Return a copy of the table for other processes.

        It has no scratch folder, which this process deletes at its end, and no history.
        """
        return replace(
            self, scratch=None, drawn_from=None, made_from=None, conversion=None, joined=None
        )

    def where(self, row: int) -> str:
        """Return the file and row of a row of the table, for error messages."""
        file = self.file_of(row)
        return file.where(row - file.first_row)

    def file_of(self, row: int) -> TableFile:
        """Return the file that holds a row of the table."""
        return next(file for file in self.files if row < file.first_row + file.num_rows)

    def number(self, row: int) -> int:
        """Return the row's number in the table that the user gave (differs if rows are sampled)."""
        return row if self.drawn is None else int(self.drawn[row])

    def require(self, *names: str) -> None:
        """Raise an error that names all columns that are missing or entirely null."""
        for name in names:
            if name in self.absent:
                raise RcdiagError(
                    f"{self.name}: column `{name}` is null in all {self.num_rows:,} rows",
                    hint="it was not recorded; choose another policy instead",
                )
        if any(name not in self.schema.names for name in names):
            missing.check_columns(names, self._own_schema, self.renames, self.name, self.naming)

    def may_mean(self, *names: str) -> dict[str, str]:
        """Map canonical columns that the table lacks to its own columns of equivalent names."""
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
        """Return missing `group_id` and `response_mask` with the own columns that may hold them."""
        return self.may_mean("group_id", "response_mask")

    @property
    def unreadable_log_probs(self) -> dict[str, str]:
        """Return the type of values in columns that are named like log-probs but hold no floats."""
        held: dict[str, str] = {}
        for entry in self.schema:
            named = LOOKS_LIKE_LOG_PROBS.search(entry.name)
            if not named or entry.name.startswith(OF_PROMPTS) or not columns.is_list(entry.type):
                continue
            kind = entry.type.value_type
            if pt.is_struct(kind):
                held[entry.name] = f"objects of {', '.join(part.name for part in kind)}"
            elif not columns.TOKEN_FLOATS.accepts(entry.type):
                held[entry.name] = str(kind)
        return held

    def policy_of(self, column: str) -> str | None:
        """Propose a policy name for a column of floats per token that no canonical name matches."""
        free = column in self.columns and columns.column_spec(column) is None
        if not (free and columns.TOKEN_FLOATS.accepts(self.schema.field(column).type)):
            return None
        policy = LOOKS_LIKE_LOG_PROBS.sub("", column).strip("_-")
        return column if policy in self.policies else policy or "recorded"

    def has_text(self, column: str) -> bool:
        """Tell whether the table has a text column of that name."""
        if column not in self.columns:
            return False
        kind = self.schema.field(column).type
        return bool(pt.is_string(kind) or pt.is_large_string(kind))

    @property
    def _own_schema(self) -> pa.Schema:
        """Return the schema with the column names of the files."""
        return pa.schema(
            [field.with_name(self.renames.get(field.name, field.name)) for field in self.schema]
        )

    def batches(
        self,
        names: Sequence[str] | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> Iterator[RowBatch]:
        """Yield the table's rows in order, all or a selection.

        `names` are canonical column names; None means all columns. `rows` selects row numbers
        (ascending). Only row groups that hold a selected row are read.
        """
        wanted = list(self.schema.names if names is None else names)
        for file in self.files:
            own = None  # the rows that are wanted, counted from the file's first
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
        """Yield rows of one file under canonical names, with their row numbers in it, [rows]."""
        # Read at least one column, to know the number of rows. Given values are in no file.
        free = {given_values.column_of(name) for name in self.given} - self._in_files
        read = [name for name in names if name not in free] or ["response_ids"]
        stored = [self.renames.get(name, name) for name in read]
        if file.differs:  # it may lack all requested columns, but never response_ids
            stored = list(dict.fromkeys([*stored, self._tokens]))
        back = {in_file: name for name, in_file in self.renames.items()}
        for table, numbers in read_rows_of(file.parquet, stored, self._tokens, rows):
            table = table.rename_columns([back.get(name, name) for name in table.column_names])
            if file.differs:
                schema = pa.schema([self.schema.field(name) for name in read])
                table = columns.conformed(table, schema)
            yield table, numbers

    @property
    def response_tokens(self) -> int:
        """Count response tokens by the footers; an empty response counts as one."""
        return sum(group.tokens for group in self.row_groups())

    def row_groups(self) -> list[RowGroupOfTable]:
        """Return the row groups of all files in order, from the footers."""
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
        """Return the name of the response token column in the files."""
        return self.renames.get("response_ids", "response_ids")

    @cached_property
    def _in_files(self) -> set[str]:
        """Return the canonical names of the columns that are in the files."""
        back = {in_file: name for name, in_file in self.renames.items()}
        files = [file for number, file in enumerate(self.files) if number == 0 or file.differs]
        own = [name for file in files for name in open_parquet(file.parquet).schema_arrow.names]
        return {back.get(name, name) for name in own}
