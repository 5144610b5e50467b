"""Trajectory tables are opened: any number of files as one, read in batches, never whole."""

from __future__ import annotations

import hashlib
import html
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.readers import find_files
from rcdiag.table.readers.parquet import open_parquet, read_rows_of
from rcdiag.table.readers.reader import Reader
from rcdiag.table.union import RECORDER, united, with_columns
from rcdiag.table.writer import TableWriter


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, and where its rows begin in the whole."""

    path: Path  # as the user knows it
    num_rows: int
    first_row: int
    converted: Path | None = None  # its rows as parquet, where it is of another format
    # Where some rows are drawn: their numbers in the whole table that they are drawn from, [rows],
    # and the number that the file's first row has there.
    drawn: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    start: int = 0
    # Whether columns or types differ from the table's: those that the file lacks are null there.
    differs: bool = False

    def where(self, row: int) -> str:
        """Return file and row, as an error names them, of a row counted from this file's first."""
        in_path = row if self.drawn is None else int(self.drawn[row]) - self.start
        return f"{self.path}, row {in_path}"

    @property
    def parquet(self) -> Path:
        """Return the parquet file that its rows are read from."""
        return self.converted or self.path


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of one file, with canonical column names."""

    table: pa.Table
    file: TableFile
    row_in_file: int  # of the first row

    @property
    def first_row(self) -> int:
        """Return the number of the first row in the whole table."""
        return self.file.first_row + self.row_in_file

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(self.table.slice(start, stop - start), self.file, self.row_in_file + start)

    def where(self, row: int) -> str:
        """Return file and row, as an error names them."""
        return self.file.where(self.row_in_file + row)


class Scratch:
    """A folder for converted files, gone with the last table that reads from it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, repr=False)
class Table:
    """A trajectory table on disk; one row is one sampled response."""

    files: tuple[TableFile, ...]
    schema: pa.Schema  # with canonical names
    renames: Mapping[str, str]  # canonical name -> name in the file
    scratch: Scratch | None = field(default=None, compare=False)
    drawn_from: Table | None = None  # the table that has more rows, where some of them are drawn

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
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return (
            f"Table of {self.num_rows:,} rows: {self.files[0].path}{more}\n"
            f"  policies: {', '.join(self.policies) or 'none'}\n"
            f"  columns:  {', '.join(self.columns)}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Return what earlier runs of rcdiag, or other programs, wrote about the table."""
        try:
            return columns.metadata_of(self.schema)
        except ValueError as error:
            raise RcdiagError(
                f"{self.files[0].path}: the file metadata `rcdiag` is not JSON ({error})",
                hint="remove the key, or score the original table again",
            ) from error

    @cached_property
    def fingerprint(self) -> str:
        """Hash the bytes of all files as they were given, in order; of drawn rows theirs alone."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            path = file.path if file.drawn is None else file.parquet
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
        if any(name not in self.schema.names for name in names):
            missing.check_columns(names, self._own_schema, {}, str(self.files[0].path))

    def may_mean(self, *names: str) -> dict[str, str]:
        """Return for columns that the table lacks its own columns whose names say the same."""
        lacking = {name: name for name in names if name not in self.schema.names}
        return missing.meant_columns(lacking, self._own_schema, self.renames, least=1.0)

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

    @property
    def _own_schema(self) -> pa.Schema:
        """Return the schema with the names that the columns have in the files."""
        return pa.schema(
            [field.with_name(self.renames.get(field.name, field.name)) for field in self.schema]
        )

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield all rows in order; `names` are canonical, None means every column."""
        canonical = list(self.schema.names if names is None else names)
        fields = [
            self.schema.field(name).with_name(self.renames.get(name, name)) for name in canonical
        ]
        tokens = self.renames.get("response_ids", "response_ids")
        for file in self.files:
            row = 0
            # A file that lacks all these columns has its rows counted by its tokens.
            in_file = [*(field.name for field in fields), *([tokens] if file.differs else [])]
            for record in read_rows_of(file.parquet, list(dict.fromkeys(in_file)), tokens):
                table = pa.Table.from_batches([record])
                if file.differs:
                    table = with_columns(table, pa.schema(fields))
                table = table.select([field.name for field in fields]).rename_columns(canonical)
                yield Batch(columns.with_versions_as_numbers(table), file, row)
                row += record.num_rows


def open_table(
    source: str | Path | Sequence[str | Path],
    renames: Mapping[str, str] | None = None,
    format: str | None = None,
    needed: Sequence[str] = (),
) -> Table:
    """Open a file, a folder, a glob, or a list of them, as one table.

    `renames` maps canonical column names to the names in the files. `format` names one of
    `READERS`; without it the files tell. A table without `response_ids` or without a mapped column
    is refused, with an error that names what else it lacks of `needed`. Parquet stays where it is,
    and only its footers are read; files of another format are converted to parquet here, once.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    names = [str(place) for place in sources]
    reader, paths = find_files(names, format)
    if reader.read is None:
        return _table(names[0], [(path, None) for path in paths], renames, needed)
    scratch = Scratch()
    written = [
        (path, converted)
        for number, path in enumerate(paths)
        if (converted := _convert(reader, path, scratch.path / f"{number:06d}.parquet"))
    ]
    return _table(names[0], written, renames, needed, scratch)


def _convert(reader: Reader, path: Path, target: Path) -> Path | None:
    """Write the rows of a file to a parquet file; None where it has no rows."""
    assert reader.read is not None
    batches = reader.read(path)
    first = next(batches, None)
    if first is None:
        return None
    with TableWriter(target, first.schema, columns.metadata_of(first.schema)) as writer:
        writer.write(pa.Table.from_batches([first]))
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
    return target


def _table(
    source: str,
    files: Sequence[tuple[Path, Path | None]],
    renames: Mapping[str, str] | None,
    needed: Sequence[str],
    scratch: Scratch | None = None,
) -> Table:
    """Make one table of files, each with its converted form, that all have the same columns."""
    renames = dict(renames or {})
    missing.check_names(renames)
    opened: list[TableFile] = []
    schemas: list[pa.Schema] = []
    schema: pa.Schema | None = None
    first_row = 0
    for path, converted in files:
        parquet = open_parquet(converted or path)
        _check_columns(parquet.schema_arrow, renames, needed, path)
        file_schema = _canonical(parquet.schema_arrow, renames, path)
        columns.check_types(file_schema, str(path))
        schema = file_schema if schema is None else _of_both(schema, file_schema, path, opened)
        schemas.append(file_schema)
        opened.append(TableFile(path, parquet.metadata.num_rows, first_row, converted))
        first_row += parquet.metadata.num_rows
    if first_row == 0:
        raise RcdiagError(f"{source}: the table has zero rows", hint="was the dump finished?")
    assert schema is not None
    known = {field.name: field.type for field in schema}
    files = tuple(
        replace(file, differs={field.name: field.type for field in own} != known)
        for file, own in zip(opened, schemas, strict=True)
    )
    return Table(files, schema, renames, scratch)


def _check_columns(
    file_schema: pa.Schema, renames: Mapping[str, str], needed: Sequence[str], path: Path
) -> None:
    """Refuse a file without tokens or a mapped column, with all that it lacks."""
    always = {renames.get("response_ids", "response_ids"), *renames.values()}
    if not always <= set(file_schema.names):
        missing.check_columns(["response_ids", *needed], file_schema, renames, str(path))


def _canonical(file_schema: pa.Schema, renames: Mapping[str, str], path: Path) -> pa.Schema:
    """Return the file's schema with mapped columns under their canonical names."""
    back: dict[str, str] = {}
    for name, in_file in renames.items():
        if name in file_schema.names and name != in_file:
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
    table_schema: pa.Schema, file_schema: pa.Schema, path: Path, files: list[TableFile]
) -> pa.Schema:
    """Return the schema of a table that gains a file.

    Parts of recorders may have columns that others lack; all other files have the same columns.
    """
    if file_schema.equals(table_schema):
        return table_schema
    if _is_recorded(table_schema) and _is_recorded(file_schema):
        try:
            return united(table_schema, file_schema)
        except RcdiagError as error:
            raise RcdiagError(f"{path}: {error.message}", hint=error.hint) from error
    file_types = {field.name: field.type for field in file_schema}
    table_types = {field.name: field.type for field in table_schema}
    differ = sorted(
        name
        for name in file_types.keys() | table_types.keys()
        if file_types.get(name) != table_types.get(name)
    )
    if not differ:  # only the order of the columns differs
        return table_schema
    raise RcdiagError(
        f"{path}: columns {', '.join(differ)} differ from {files[0].path}; one table needs one "
        "schema",
        hint="score the files apart, or write them with the same columns",
    )


def _is_recorded(schema: pa.Schema) -> bool:
    try:
        return RECORDER in columns.metadata_of(schema)
    except ValueError:
        return False
