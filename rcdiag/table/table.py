"""Trajectory tables are opened: any number of files as one, read in batches, never whole."""

from __future__ import annotations

import hashlib
import html
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, without_secrets
from rcdiag.results import JoinReport
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.conversion import Conversion, Heard, RowOrigin, convert_files, with_urls
from rcdiag.table.memory import name_in_memory, write_rows
from rcdiag.table.naming import Naming, naming_of
from rcdiag.table.observed import all_null
from rcdiag.table.readers.parquet import (
    open_parquet,
    read_rows_of,
    row_groups_of,
    rows_per_batch,
)
from rcdiag.table.remote_file import TAIL, AnyFile, RemoteFile
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile, SourceFiles, find_files
from rcdiag.table.unify import common_schema, conformed

RowRange = tuple[int, int]  # first row and the row after the last, in the whole table


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
        assert self.taken is None
        taken = np.flatnonzero(keep)
        return Batch(self.table.take(taken), self.file, self.row_in_file, taken)

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(self.table.slice(start, stop - start), self.file, self.row_in_file + start)

    def where(self, row: int) -> str:
        """Return file and row, as an error names them."""
        offset = row if self.taken is None else int(self.taken[row])
        return self.file.where(self.row_in_file + offset)


@dataclass(frozen=True, repr=False)
class Table:
    """A trajectory table on disk; one row is one sampled response."""

    files: tuple[TableFile, ...]
    schema: pa.Schema  # with canonical names
    renames: Mapping[str, str]  # canonical name -> name in the file
    scratch: Scratch | None = field(default=None, compare=False)
    drawn_from: Table | None = None  # the table that has more rows, where some of them are drawn
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

    def where(self, row: int) -> str:
        """Return file and row, as an error names them, of a row of the whole table."""
        file = self._file_of(row)
        return file.where(row - file.first_row)

    def number(self, row: int) -> int:
        """Return the number of a row in the table that the user named, where rows are drawn."""
        file = self._file_of(row)
        return row if file.drawn is None else int(file.drawn[row - file.first_row])

    def _file_of(self, row: int) -> TableFile:
        return next(file for file in self.files if row < file.first_row + file.num_rows)

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
        policy = missing.LOOKS_LIKE_LOG_PROBS.sub("", column).strip("_-")
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
        self, names: Sequence[str] | None = None, between: RowRange | None = None
    ) -> Iterator[Batch]:
        """Yield all rows in order; `names` are canonical, None means every column.

        `between` takes the rows from one number to the one before another, and reads the row groups
        of these alone.
        """
        wanted = list(self.schema.names if names is None else names)
        for file in self.files:
            if between is None:
                yield from self._rows_in(file, wanted, None, (0, file.num_rows))
                continue
            first, end = (min(max(row - file.first_row, 0), file.num_rows) for row in between)
            if first < end:
                groups = _groups_with(file, first, end)
                yield from self._rows_in(file, wanted, groups, (first, end))

    def _rows_in(
        self, file: TableFile, names: Sequence[str], groups: range | None, between: RowRange
    ) -> Iterator[Batch]:
        """Yield rows of a file from its row groups, None for all of them."""
        sizes = [group.num_rows for group in row_groups_of(file.parquet)] if groups else []
        row = sum(sizes[: groups.start]) if groups else 0
        stored = self._stored_in(file, names)
        for record in read_rows_of(file.parquet, stored, self._tokens, groups):
            first = max(between[0] - row, 0)
            last = min(between[1] - row, record.num_rows)
            if first >= last:
                row += record.num_rows
                continue
            part = record.slice(first, last - first)
            if file.differs:
                part = self._conformed(part, names)
            numbers = file.first_row + row + np.arange(first, last)
            yield Batch(self.canonical(part, names, numbers), file, row + first)
            row += record.num_rows

    @property
    def response_tokens(self) -> int:
        """Return the response tokens that footers tell; a row counts one at least."""
        return sum(
            chunk.num_values
            for file in self.files
            for group in row_groups_of(file.parquet)
            for chunk in group.columns
            if chunk.column == self._tokens
        )

    def batch_ranges(self) -> list[RowRange]:
        """Return the first row of every batch that `batches` yields, and the row after its last."""
        ranges = []
        for file in self.files:
            size = rows_per_batch(file.parquet, self._tokens)
            for first in range(0, file.num_rows, size):
                end = min(first + size, file.num_rows)
                ranges.append((file.first_row + first, file.first_row + end))
        return ranges

    def batches_from(self, ranges: Sequence[RowRange], rows: Sequence[pa.Table]) -> Iterator[Batch]:
        """Yield rows that were read elsewhere, of some of `batch_ranges`, as batches."""
        for (first, _), table in zip(ranges, rows, strict=True):
            file = self._file_of(first)
            yield Batch(table, file, first - file.first_row)

    def batches_of(
        self, file: TableFile, rows: NDArray[np.int64], names: Sequence[str]
    ) -> Iterator[Batch]:
        """Yield some rows of a file, reading no row group without one of them.

        `rows` are counted from the file's first row, ascending; `names` are canonical.
        """
        metadata = open_parquet(file.parquet).metadata
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        groups = np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist()
        numbers = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in groups])
        keep = np.isin(numbers, rows)
        stored = self._stored_in(file, names)
        row = 0
        for record in read_rows_of(file.parquet, stored, self._tokens, row_groups=groups):
            here = slice(row, row + record.num_rows)
            row += record.num_rows
            if not keep[here].any():
                continue
            if file.differs:
                record = self._conformed(record, names)
            table = self.canonical(record, names, file.first_row + numbers[here])
            taken = numbers[here][keep[here]]
            yield Batch(_picked(table, keep[here]), file, 0, taken)

    @property
    def _tokens(self) -> str:
        """Return the name that the files have for the column of response tokens."""
        return self.renames.get("response_ids", "response_ids")

    def stored(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the files that hold these columns; at least one, for their rows."""
        free = {given_values.column_of(name) for name in self.given} - self._in_files
        return [self.renames.get(name, name) for name in names if name not in free] or [
            self._tokens
        ]

    def _stored_in(self, file: TableFile, names: Sequence[str]) -> list[str]:
        """Return what is read of a file; of one that lacks columns at least its tokens."""
        stored = self.stored(names)
        return list(dict.fromkeys([*stored, self._tokens])) if file.differs else stored

    def _conformed(self, record: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return rows of a file that differs, with all the columns that are read, by own names."""
        own = pa.schema([self._own_schema.field(name) for name in self.stored(names)])
        (batch,) = conformed(pa.Table.from_batches([record]), own).to_batches()
        return batch

    @cached_property
    def _in_files(self) -> set[str]:
        """Return the canonical names of the columns that the files have."""
        back = {in_file: name for name, in_file in self.renames.items()}
        files = [file for number, file in enumerate(self.files) if number == 0 or file.differs]
        own = [name for file in files for name in open_parquet(file.parquet).schema_arrow.names]
        return {back.get(name, name) for name in own}

    def canonical(
        self, record: pa.RecordBatch, names: Sequence[str], numbers: NDArray[np.int64]
    ) -> pa.Table:
        """Return rows of a file with canonical names, and with what is given for all rows.

        `numbers` are those of the rows in the whole table, [rows].
        """
        back = {in_file: name for name, in_file in self.renames.items()}
        table = pa.Table.from_batches([record])
        table = table.rename_columns([back.get(name, name) for name in table.column_names])
        if self.given:
            table = given_values.filled(table, self.given, numbers)
        return columns.with_versions_as_numbers(table.select(names))


def _groups_with(file: TableFile, first: int, end: int) -> range:
    """Return the row groups of a file that hold its rows from `first` to before `end`."""
    sizes = [group.num_rows for group in row_groups_of(file.parquet)]
    ends = np.cumsum(sizes)
    start = int(np.searchsorted(ends, first, side="right"))
    return range(start, int(np.searchsorted(ends, end, side="left")) + 1)


def open_table(
    source: str | Path | Sequence[str | Path],
    renames: Mapping[str, str] | None = None,
    format: str | None = None,
    needed: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Table:
    """Open a file, a folder, a glob, a URL, or a list of them, as one table.

    `renames` maps canonical column names to the names in the files; an empty name reads none as
    that column. Columns of parquet files that are not mapped are read under the names that other
    programs give them where nothing speaks against it. `format` names one of `READERS`; without it
    the files tell. `given` holds values of all rows that the files lack. A table without
    `response_ids` or without a mapped column is refused, with an error that names what else it
    lacks of `needed`. Parquet stays where it is: its footers are read, and the first rows of a file
    with other names; files of another format are converted to parquet here, once.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    parts = [find_files(str(place), format) for place in sources]
    for part in parts:
        if part.reader is not parts[0].reader:
            raise RcdiagError(
                f"{part.source}: not the format of the other files ({part.reader.name}, "
                f"{parts[0].source} is {parts[0].reader.name})",
                hint="one table has one format; rcdiag.open_table joins two dumps of one run",
            )
    return open_parts(parts, renames, needed, given)


def open_parts(
    parts: Sequence[SourceFiles],
    renames: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    heard: Heard | None = None,
    beside: Path | None = None,
) -> Table:
    """Open the files of sources of one format as one table.

    `tokenizer` is a folder whose tokenizer encodes dumps of text; `heard` takes how far a
    conversion is. What is converted lies in a temporary folder, that of the file `beside` if given.
    """
    reader = parts[0].reader
    files = [file for part in parts for file in part.files]
    values = given_values.read_given(given)
    # Copies of remote files stay as long as the table.
    kept = [part.scratch for part in parts if part.scratch is not None]
    if reader.read is None:
        try:
            table = _table(parts[0].source, files, renames or {}, needed)
        except RcdiagError as error:
            raise with_urls(error, files) from error
        return _with_given(_without_absent(replace(table, scratch=_together(kept))), values)
    missing.check_names(renames or {})
    scratch = Scratch(beside)
    target = scratch.path / "converted.parquet"
    try:
        made = convert_files(
            reader,
            files,
            target,
            given=values,
            renames={name: own for name, own in (renames or {}).items() if own},
            tokenizer=tokenizer,
            heard=heard,
        )
    except BaseException:
        scratch.remove()
        raise
    schema = columns.versions_are_numbers(open_parquet(target).schema_arrow)
    first = files[0]
    file = TableFile(first.path, made.rows, 0, target, first.url, made.origin)
    table = Table((file,), schema, {}, _together([scratch, *kept]), conversion=made)
    return _without_absent(table)


def open_rows(
    rows: object,
    renames: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Table:
    """Open a table that lies in memory, as `open_table` opens files.

    It is written to a parquet file once, which goes with the table.
    """
    name = name_in_memory(rows)
    if name is None:
        raise RcdiagError(
            f"a {type(rows).__name__} is no table",
            hint="give a path, a data frame, an Arrow table, or a mapping of columns; a list holds "
            "paths, or rows that are mappings, so that several frames are concatenated first",
        )
    values = given_values.read_given(given)
    scratch = Scratch()
    path = scratch.path / "000000.parquet"
    file = SourceFile(path, name)
    write_rows(rows, name, path)
    try:
        table = _table(name, [file], renames or {}, needed)
    except RcdiagError as error:
        raise with_urls(error, [file]) from error
    return _with_given(_without_absent(replace(table, scratch=scratch)), values)


def _picked(table: pa.Table, keep: NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `keep` [rows] holds; runs of neighbours are copied as a whole."""
    edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    runs = edges.reshape(-1, 2).tolist()
    return pa.concat_tables(table.slice(first, end - first) for first, end in runs).combine_chunks()


def _without_absent(table: Table) -> Table:
    """Return a table without the columns of log-probs that are null in every row."""
    columns_of = [f"{policy}_log_probs" for policy in table.policies]
    absent = frozenset(name for name in columns_of if all_null(table, name))
    if not absent:
        return table
    return replace(table, schema=_without(table.schema, absent), absent=table.absent | absent)


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    fields = [field for field in schema if field.name not in names]
    return pa.schema(fields, metadata=schema.metadata)


def _together(folders: Sequence[Scratch]) -> Scratch | None:
    """Return a folder that keeps others as long as it is there itself."""
    if not folders:
        return None
    first, *others = folders
    first.others = tuple(others)
    return first


def _with_given(table: Table, given: Mapping[str, Any]) -> Table:
    """Return a table of parquet files with columns that the user gives for all rows.

    Values that the files have must not contradict them. Nothing is written: rows are filled when
    they are read.
    """
    if not given:
        return table
    given_values.check_choices(given, (), table.name)
    schema = table.schema
    for name, value in given.items():
        column = given_values.column_of(name)
        if column in schema.names:
            _agree(table, name, value)
        elif name == given_values.GROUP_SIZE:
            given_values.check_divisible(table.num_rows, value, table.name)
            schema = schema.append(pa.field(column, pa.int64()))
        else:
            schema = schema.append(pa.field(column, given_values.type_of(name, value)))
    metadata = {**table.metadata, "given": {**table.metadata.get("given", {}), **given}}
    return replace(table, schema=columns.with_metadata(schema, metadata), given=given)


def _agree(table: Table, name: str, value: Any) -> None:
    """Refuse a value that rows of a table contradict."""
    column = given_values.column_of(name)
    if name == given_values.GROUP_SIZE:
        counts: Counter[Any] = Counter()
        for batch in table.batches([column]):
            counts.update(batch.table[column].to_pylist())
        given_values.check_group_sizes(np.array(list(counts.values())), value, table.name)
        return
    for batch in table.batches([column]):
        row = given_values.contradiction(batch.table, name, value)
        if row is not None:
            own = batch.table[column][row].as_py()
            raise given_values.refusal(batch.where(row), name, value, own)


def _table(
    source: str,
    files: Sequence[SourceFile],
    renames: Mapping[str, str],
    needed: Sequence[str],
) -> Table:
    """Make one table of parquet files that all have the same columns.

    What is read under other names is decided by the first file.
    """
    mapped = {name: own for name, own in renames.items() if own}
    off = frozenset(renames) - set(mapped)
    naming = Naming(off=off)
    opened: list[TableFile] = []
    absent: set[str] = set()
    schemas: list[pa.Schema] = []
    schema: pa.Schema | None = None
    first_row = 0
    for source_file in files:
        path = source_file.path
        parquet = open_parquet(path)
        if schema is None:
            missing.check_names(renames, parquet.schema_arrow, str(path))
            naming = naming_of(path, path, mapped, off)
            mapped = {**mapped, **naming.taken}
        _check_columns(parquet.schema_arrow, mapped, needed, path, naming)
        file_schema = _canonical(parquet.schema_arrow, mapped, path)
        absent |= {field.name for field in file_schema if pt.is_null(field.type)}
        file_schema = _without(file_schema, absent)
        columns.check_types(file_schema, str(path))
        schema = file_schema if schema is None else _of_both(schema, file_schema, path, opened)
        schemas.append(file_schema)
        rows = parquet.metadata.num_rows
        opened.append(TableFile(path, rows, first_row, url=source_file.url))
        first_row += rows
    if first_row == 0:
        raise RcdiagError(f"{source}: the table has zero rows", hint="was the dump finished?")
    assert schema is not None
    kinds = {field.name: field.type for field in schema}
    own_kinds = [{field.name: field.type for field in own} for own in schemas]
    told = [
        replace(file, differs=own != kinds) for file, own in zip(opened, own_kinds, strict=True)
    ]
    return Table(tuple(told), schema, mapped, naming=naming, absent=frozenset(absent))


def _check_columns(
    file_schema: pa.Schema,
    renames: Mapping[str, str],
    needed: Sequence[str],
    path: AnyFile,
    naming: Naming,
) -> None:
    """Refuse a file without tokens or a mapped column, with all that it lacks."""
    always = {renames.get("response_ids", "response_ids"), *renames.values()}
    if not always <= set(file_schema.names):
        missing.check_columns(["response_ids", *needed], file_schema, renames, str(path), naming)


def _canonical(file_schema: pa.Schema, renames: Mapping[str, str], path: AnyFile) -> pa.Schema:
    """Return the file's schema with mapped columns under their canonical names."""
    back: dict[str, str] = {}
    for name, in_file in renames.items():
        if name in file_schema.names and name != in_file and name not in renames.values():
            raise RcdiagError(
                f"{path}: {columns.column_setting({name: in_file})}, but a column `{name}` is "
                "there as well",
                hint=f"drop or rename `{name}` in the file",
            )
        if in_file in back:
            raise RcdiagError(
                f"{columns.column_setting({name: in_file})}: `{in_file}` is read as "
                f"`{back[in_file]}` already",
                hint="one column stands for one thing",
            )
        back[in_file] = name
    fields = [field.with_name(back.get(field.name, field.name)) for field in file_schema]
    return columns.versions_are_numbers(pa.schema(fields, metadata=file_schema.metadata))


def _of_both(
    table_schema: pa.Schema, file_schema: pa.Schema, path: AnyFile, files: list[TableFile]
) -> pa.Schema:
    """Return the schema of a table that gains a file.

    Parts of recorders may have columns that others lack; all other files have the same columns.
    """
    if file_schema.equals(table_schema):
        return table_schema
    file_types = {field.name: field.type for field in file_schema}
    table_types = {field.name: field.type for field in table_schema}
    differ = sorted(
        name
        for name in file_types.keys() | table_types.keys()
        if file_types.get(name) != table_types.get(name)
    )
    if not differ:  # only the order of the columns differs
        return table_schema
    if columns.is_recorded(table_schema) and columns.is_recorded(file_schema):
        schema, differ = common_schema(table_schema, file_schema)
        if not differ:
            return schema.with_metadata(table_schema.metadata)
    raise RcdiagError(
        f"{path}: columns {', '.join(differ)} differ from {files[0].name}; one table needs one "
        "schema",
        hint="score the files apart, or write them with the same columns",
    )
