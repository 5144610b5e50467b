"""Open trajectory tables: any number of parquet files, read in batches of rows, never whole."""

from __future__ import annotations

import glob
import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.errors import RcdiagError
from rcdiag.table import schema as columns

# Rows are read in batches of about this many response tokens: a few dozen MB with all columns.
TOKENS_PER_BATCH = 1_000_000
MAX_ROWS_PER_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class TableFile:
    """One parquet file of a table, and where its rows begin in the whole."""

    path: Path
    num_rows: int
    first_row: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of one file, with canonical column names."""

    table: pa.Table
    file: TableFile
    row_in_file: int  # of the first row

    @property
    def first_row(self) -> int:
        return self.file.first_row + self.row_in_file

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(self.table.slice(start, stop - start), self.file, self.row_in_file + start)

    def where(self, row: int) -> str:
        """File and row, as an error names them."""
        return f"{self.file.path}, row {self.row_in_file + row}"


@dataclass(frozen=True, repr=False)
class Table:
    """A trajectory table on disk; one row is one sampled response."""

    files: tuple[TableFile, ...]
    schema: pa.Schema  # with canonical names
    renames: Mapping[str, str]  # canonical name -> name in the file

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, by which rcdiag knows them."""
        return list(self.schema.names)

    @property
    def policies(self) -> list[str]:
        """The policies whose log-probs are recorded."""
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
        """What earlier runs of rcdiag wrote about the table."""
        raw = (self.schema.metadata or {}).get(columns.METADATA_KEY, b"{}")
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise RcdiagError(
                f"{self.files[0].path}: the file metadata `rcdiag` is not JSON ({error})",
                hint="remove the key, or score the original table again",
            ) from error
        return found if isinstance(found, dict) else {}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the bytes of all files, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            with file.path.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
        return digest.hexdigest()

    def where(self, row: int) -> str:
        """File and row, as an error names them, of a row of the whole table."""
        file = next(each for each in self.files if row < each.first_row + each.num_rows)
        return f"{file.path}, row {row - file.first_row}"

    def require(self, *names: str) -> None:
        for name in names:
            columns.require(name, self.schema, str(self.files[0].path))

    def batches(self, names: Sequence[str] | None = None) -> Iterator[Batch]:
        """All rows in order; `names` are canonical, None means every column."""
        wanted = list(self.schema.names if names is None else names)
        in_file = [self.renames.get(name, name) for name in wanted]
        for file in self.files:
            row = 0
            for record in _records(file, self, in_file):
                table = pa.Table.from_batches([record]).select(in_file).rename_columns(wanted)
                yield Batch(table, file, row)
                row += record.num_rows


def _records(file: TableFile, dump: Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The record batches of one file; damage behind a good footer shows only here."""
    reader = _open_parquet(file.path)
    row = 0
    try:
        for record in reader.iter_batches(_rows_per_batch(reader, dump), columns=list(names)):
            yield record
            row += record.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(file.path, error, f", after row {row}") from error


def open_table(
    source: str | Path | Sequence[str | Path], renames: Mapping[str, str] | None = None
) -> Table:
    """Open a file, a directory, a glob or a list of parquet files as one table.

    `renames` maps canonical column names to the names in the files. Only footers are read here.
    """
    renames = dict(renames or {})
    files: list[TableFile] = []
    table_schema: pa.Schema | None = None
    first_row = 0
    sources = [source] if isinstance(source, (str, Path)) else source
    for path in [path for each in sources for path in _expand(str(each))]:
        reader = _open_parquet(path)
        file_schema = _canonical(reader.schema_arrow, renames, path)
        columns.check_types(file_schema, str(path))
        columns.require("response_ids", file_schema, str(path))
        if table_schema is None:
            table_schema = file_schema
        _check_same(table_schema, file_schema, path, files)
        files.append(TableFile(path, reader.metadata.num_rows, first_row))
        first_row += reader.metadata.num_rows
    if first_row == 0:
        raise RcdiagError(f"{source}: the table has zero rows", hint="was the dump finished?")
    assert table_schema is not None
    return Table(tuple(files), table_schema, renames)


def _expand(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        # An interrupted scoring run leaves parts beside its output; they are no tables.
        found = sorted(
            file
            for file in path.rglob("*.parquet")
            if not any(parent.suffix == ".parts" for parent in file.relative_to(path).parents)
        )
    elif path.exists():
        found = [path]
    else:
        found = sorted(Path(name) for name in glob.glob(source, recursive=True))
    if not found:
        what = "no parquet file in this directory" if path.is_dir() else "no such file"
        raise RcdiagError(f"{source}: {what}", hint="give a parquet file, a directory or a glob")
    return found


def _open_parquet(path: Path) -> pq.ParquetFile:
    if path.is_dir():
        raise RcdiagError(f"{path}: a directory, not a file", hint="give it alone, not in a glob")
    try:
        size = path.stat().st_size
        if size == 0:
            raise RcdiagError(f"{path}: the file is empty (0 bytes)", hint="copy it again")
        with path.open("rb") as stream:
            starts_well = stream.read(4) == b"PAR1"
        if not starts_well:
            raise RcdiagError(
                f"{path}: not a parquet file (it does not begin with PAR1)",
                hint="write the dump as parquet, for example polars.read_ndjson(...).write_parquet",
            )
        # Pre-buffering holds on to all that was read; a memory map counts as resident all it read.
        return pq.ParquetFile(path, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception, where: str = "") -> RcdiagError:
    return RcdiagError(
        f"{path}{where}: damaged or truncated parquet file ({str(error).splitlines()[0]})",
        hint="its writer did not finish or the copy broke off; copy or write it again",
    )


def _canonical(file_schema: pa.Schema, renames: Mapping[str, str], path: Path) -> pa.Schema:
    """The file's schema with mapped columns under their canonical names."""
    back: dict[str, str] = {}
    for name, in_file in renames.items():
        columns.require(in_file, file_schema, str(path))
        if name in file_schema.names and name != in_file:
            raise RcdiagError(
                f"{path}: --column {name}={in_file}, but a column `{name}` is there as well",
                hint=f"drop or rename `{name}` in the file",
            )
        if in_file in back:
            raise RcdiagError(
                f"--column {name}={in_file}: `{in_file}` is read as `{back[in_file]}` already",
                hint="one column stands for one thing",
            )
        back[in_file] = name
    fields = [field.with_name(back.get(field.name, field.name)) for field in file_schema]
    return pa.schema(fields, metadata=file_schema.metadata)


def _check_same(
    table_schema: pa.Schema, file_schema: pa.Schema, path: Path, files: list[TableFile]
) -> None:
    if file_schema.equals(table_schema):
        return
    here = {field.name: field.type for field in file_schema}
    there = {field.name: field.type for field in table_schema}
    differ = sorted(
        name for name in here.keys() | there.keys() if here.get(name) != there.get(name)
    )
    if not differ:  # only the order of the columns differs
        return
    raise RcdiagError(
        f"{path}: columns {', '.join(differ)} differ from {files[0].path}; one table needs one "
        "schema",
        hint="score the files apart, or write them with the same columns",
    )


def _rows_per_batch(reader: pq.ParquetFile, dump: Table) -> int:
    """Rows that hold about TOKENS_PER_BATCH response tokens, from the footer alone."""
    name = dump.renames.get("response_ids", "response_ids")
    metadata = reader.metadata
    tokens = sum(
        group.column(index).num_values
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for index in range(group.num_columns)
        if group.column(index).path_in_schema.split(".")[0] == name
    )
    per_row = max(tokens / max(metadata.num_rows, 1), 1.0)
    return int(min(max(TOKENS_PER_BATCH / per_row, 1), MAX_ROWS_PER_BATCH))
