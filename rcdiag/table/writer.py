"""Trajectory tables are written as parquet, with encodings that suit log-probs.

A file appears when all of it is written. `TableWriter` knows the columns before the first row;
`GrowingWriter` takes rows with new columns.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from rcdiag.files import new_beside, not_writable
from rcdiag.table.arrow import lengths_of
from rcdiag.table.schema import FORMAT_VERSION, METADATA_KEY, TOKEN_IDS, column_spec, is_list
from rcdiag.table.unify import cast, common_schema, conformed

# Rows are gathered until a row group holds about this many values of its largest column.
VALUES_PER_ROW_GROUP = 2_000_000
# Rows that are copied at a time where parts are brought to one schema.
ROWS_PER_COPY = 512


class TableWriter:
    """A writer of parquet under a temporary name, which becomes `path` when all went well."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: dict | None) -> None:
        """`metadata` that is known only when all is written, None here, is given to `describe`."""
        self._path = path
        self._late = metadata is None
        raw = dict(schema.metadata or {})
        raw.pop(METADATA_KEY, None)
        self._schema = schema.with_metadata(raw if metadata is None else raw | _raw(metadata))
        self._pending: list[pa.Table] = []
        self._pending_values = 0

    def __enter__(self) -> TableWriter:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = new_beside(self._path)
            # What is added to the footer at last is not in a schema that is stored at first.
            self._writer = pq.ParquetWriter(
                self._temporary,
                self._schema,
                store_schema=not self._late,
                write_page_checksum=True,
                **encodings(self._schema),
            )
        except OSError as error:
            raise not_writable(self._path, error) from error
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows; they reach the disk when a row group is full."""
        columns = [cast(table[field.name], field.type) for field in self._schema]
        self._pending.append(pa.table(columns, schema=self._schema))
        lists = (column for column in table.columns if pt.is_list(column.type))
        self._pending_values += max((int(lengths_of(column).sum()) for column in lists), default=0)
        if self._pending_values >= VALUES_PER_ROW_GROUP:
            self._flush()

    def describe(self, metadata: dict) -> None:
        """Add what was learned of the table while it was written."""
        self._writer.add_key_value_metadata(_raw(metadata))

    def _flush(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending)
            self._pending, self._pending_values = [], 0
            try:
                self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            except OSError as error:
                raise not_writable(self._path, error) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
            if kind is None:
                os.replace(self._temporary, self._path)
        except OSError as failure:
            raise not_writable(self._path, failure) from failure
        finally:
            self._temporary.unlink(missing_ok=True)


def write_tables(path: Path, tables: Iterator[pa.Table], metadata: dict[str, Any]) -> None:
    """Write tables of one schema, that of the first, to one file."""
    first = next(tables)
    with TableWriter(path, first.schema, metadata) as writer:
        for table in itertools.chain([first], tables):
            writer.write(table)


class GrowingWriter:
    """A writer of parquet that takes rows with new columns, and becomes `path` when all went well.

    Rows are written once where all have the same columns. A new column begins a part, and the
    parts are copied into one file at the end; so is a part of which columns are to be left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schema: pa.Schema | None = None
        self._parts: list[Path] = []
        self._writer: TableWriter | None = None
        self.mixed: set[str] = set()  # columns left out for types that nothing unites

    def __enter__(self) -> GrowingWriter:
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        own = table.schema.remove_metadata()
        if self._schema is None:
            self._begin_part(own)
        elif not own.equals(self._schema):
            schema, without = common_schema(self._schema, own)
            self.mixed |= set(without)
            schema = pa.schema([field for field in schema if field.name not in self.mixed])
            if not schema.equals(self._schema):
                self._begin_part(schema)
        assert self._writer is not None
        assert self._schema is not None
        self._writer.write(conformed(table, self._schema))

    def finish(self, metadata: dict, without: Collection[str] = ()) -> pa.Schema | None:
        """Complete the file, without some columns; returns its schema, None where no row came."""
        if self._schema is None or self._writer is None:
            return None
        schema = pa.schema([field for field in self._schema if field.name not in without])
        # Null is no type that a file can hold: nothing was ever known of such a column.
        schema = pa.schema([field for field in schema if not pa.types.is_null(field.type)])
        if len(self._parts) == 1 and schema.equals(self._schema):
            self._writer.describe(metadata)
        self._end_part()
        if len(self._parts) == 1 and schema.equals(self._schema):
            os.replace(self._parts[0], self._path)
        else:
            self._copy(schema, metadata)
        return schema

    def _copy(self, schema: pa.Schema, metadata: dict) -> None:
        """Bring all parts to one schema, in one file."""
        with TableWriter(self._path, schema, metadata) as writer:
            for part in self._parts:
                file = pq.ParquetFile(part, pre_buffer=False)
                names = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(ROWS_PER_COPY, columns=names):
                    writer.write(conformed(pa.Table.from_batches([batch]), schema))
                file.close()
                part.unlink()

    def _begin_part(self, schema: pa.Schema) -> None:
        self._end_part()
        self._schema = schema
        number = len(self._parts)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.{number}.part")
        self._parts.append(part)
        stored = pa.schema([field for field in schema if not pa.types.is_null(field.type)])
        self._writer = TableWriter(part, stored, None).__enter__()

    def _end_part(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind or RuntimeError, error, traceback)
        for part in self._parts:
            part.unlink(missing_ok=True)


def _raw(metadata: dict) -> dict[bytes, bytes]:
    """Return the file metadata that holds an object under rcdiag's key."""
    return {METADATA_KEY: json.dumps({"format_version": FORMAT_VERSION, **metadata}).encode()}


def encodings(schema: pa.Schema) -> dict:
    """Return arguments of pq.ParquetWriter: zstd, bytes in streams, dictionaries.

    The exponent bytes of log-probs repeat and their mantissas do not, and so with the high and low
    bytes of token ids: split into streams the former compress, while a dictionary only costs.
    Measured by `benchmarks/parquet.py`.
    """
    in_streams: list[str] = []
    in_dictionaries: list[str] = []
    for field in schema:
        path, kind = field.name, field.type
        while is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        # Arrow has no byte-stream-split for half precision.
        is_float = pt.is_float32(kind) or pt.is_float64(kind)
        wide = pt.is_integer(kind) and kind.bit_width >= 32
        is_token = wide and column_spec(field.name) is TOKEN_IDS
        streams = path != field.name and (is_float or is_token)
        (in_streams if streams else in_dictionaries).append(path)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": in_dictionaries,
        "use_byte_stream_split": in_streams,
    }
