"""The writer of every parquet file that rcdiag makes.

A file is written under a temporary name and renamed when it is complete. The encodings suit
log-probs and token ids.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from rcdiag.files import new_beside, not_writable
from rcdiag.table.arrow import lengths_of
from rcdiag.table.schema import (
    FORMAT_VERSION,
    METADATA_KEY,
    TOKEN_IDS,
    as_type,
    column_spec,
    common_schema,
    conformed,
    is_list,
)

# Rows are buffered until their largest column has about this many values: one row group.
VALUES_PER_ROW_GROUP = 2_000_000
# Rows that are copied at a time when parts are merged to one schema.
ROWS_PER_COPY = 512


class TableWriter:
    """Writes rows to a parquet file, which appears when the `with` block ends without an error.

    With a schema, all rows have its columns. Without one, the schema grows: rows with a new column
    start a new part (a temporary file), and `finish` merges the parts into one file. In the usual
    case all rows have the same schema, and are written only once.
    """

    def __init__(
        self, path: Path, schema: pa.Schema | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Set `metadata`, the object under rcdiag's key; if unknown yet, give it to `finish`."""
        self._path = path
        self._schema = schema
        self._metadata = metadata
        self._grows = schema is None
        self._parts: list[_Part] = []
        self.mixed: set[str] = set()  # columns left out because their types cannot be combined

    def __enter__(self) -> TableWriter:
        if self._schema is not None:
            self._parts.append(_Part(self._path, self._schema, self._metadata))
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a row group is full."""
        if self._grows:
            table = self._grown(table)
        self._parts[-1].write(table)

    def _grown(self, table: pa.Table) -> pa.Table:
        """Return rows with all columns seen so far; start a new part if the schema changed."""
        own = table.schema.remove_metadata()
        schema = own
        if self._schema is not None:
            schema, without = common_schema(self._schema, own)
            self.mixed |= set(without)
            schema = pa.schema([field for field in schema if field.name not in self.mixed])
        if self._schema is None or not schema.equals(self._schema):
            if self._parts:
                self._parts[-1].close()
            self._schema = schema
            self._parts.append(_Part(self._path, _storable(schema), None))
        return conformed(table, self._schema)

    def finish(self, metadata: dict[str, Any], without: Collection[str] = ()) -> pa.Schema | None:
        """Complete a table of growing schema, without some columns, and with its metadata.

        Returns its schema; None if there were no rows.
        """
        if self._schema is None:
            return None
        schema = _storable(self._schema, without)
        if len(self._parts) == 1 and schema.equals(self._schema):
            self._parts[0].describe(metadata)
        else:
            self._parts[-1].close()
            self._copy(schema, metadata)
        self._appear()
        return schema

    def _copy(self, schema: pa.Schema, metadata: dict[str, Any]) -> None:
        """Merge all parts, cast to one schema, into one file, which becomes the last part."""
        parts, whole = list(self._parts), _Part(self._path, schema, metadata)
        self._parts.append(whole)
        for part in parts:
            file = pq.ParquetFile(part.path, pre_buffer=False)
            names = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(ROWS_PER_COPY, columns=names):
                whole.write(conformed(pa.Table.from_batches([batch]), schema))
            file.close()
            part.path.unlink()

    def _appear(self) -> None:
        """Rename the last part, which holds all rows, to the final path."""
        self._parts[-1].close()
        try:
            os.replace(self._parts[-1].path, self._path)
        except OSError as error:
            raise not_writable(self._path, error) from error

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None and not self._grows:
                self._appear()
        finally:
            for part in self._parts:
                part.remove()


class _Part:
    """A parquet file under a temporary name in the folder of the final file."""

    def __init__(self, table: Path, schema: pa.Schema, metadata: dict[str, Any] | None) -> None:
        """Open the file; `metadata` is None if it will only be known later (`describe`)."""
        raw = dict(schema.metadata or {})
        raw.pop(METADATA_KEY, None)
        self._schema = schema.with_metadata(raw if metadata is None else raw | _raw(metadata))
        self._pending: list[pa.Table] = []
        self._pending_values = 0
        self._table = table
        try:
            table.parent.mkdir(parents=True, exist_ok=True)
            self._stream = new_beside(table)
            self.path = Path(self._stream.name)
            # A stored schema could not include metadata that is added to the footer at the end.
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                store_schema=metadata is not None,
                write_page_checksum=True,
                **encodings(self._schema),
            )
        except OSError as error:
            raise not_writable(table, error) from error

    def write(self, table: pa.Table) -> None:
        columns = [as_type(table[field.name], field.type) for field in self._schema]
        self._pending.append(pa.table(columns, schema=self._schema))
        lists = (column for column in table.columns if pt.is_list(column.type))
        self._pending_values += max((int(lengths_of(column).sum()) for column in lists), default=0)
        if self._pending_values >= VALUES_PER_ROW_GROUP:
            self._flush()

    def describe(self, metadata: dict[str, Any]) -> None:
        self._writer.add_key_value_metadata(_raw(metadata))

    def _flush(self) -> None:
        """Write the buffered rows as one row group."""
        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        self._pending, self._pending_values = [], 0
        try:
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        except OSError as error:
            raise not_writable(self._table, error) from error

    def close(self) -> None:
        """Write the buffered rows and the footer; closing again does nothing."""
        self._flush()
        try:
            self._writer.close()
            self._stream.close()
        except OSError as error:
            raise not_writable(self._table, error) from error

    def remove(self) -> None:
        """Close and remove the temporary file, if it was not renamed."""
        for file in (self._writer, self._stream):
            with contextlib.suppress(OSError):
                file.close()
        self.path.unlink(missing_ok=True)


def write_tables(path: Path, tables: Iterator[pa.Table], metadata: dict[str, Any]) -> None:
    """Write tables that all have the schema of the first to one file."""
    first = next(tables)
    with TableWriter(path, first.schema, metadata) as writer:
        for table in itertools.chain([first], tables):
            writer.write(table)


def _storable(schema: pa.Schema, without: Collection[str] = ()) -> pa.Schema:
    """Return the columns that parquet can store: not those of type null, which have no values."""
    return pa.schema(
        [field for field in schema if field.name not in without and not pt.is_null(field.type)]
    )


def _raw(metadata: dict[str, Any]) -> dict[bytes, bytes]:
    """Return the file metadata with a JSON object under rcdiag's key."""
    return {METADATA_KEY: json.dumps({"format_version": FORMAT_VERSION, **metadata}).encode()}


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return arguments of pq.ParquetWriter: zstd, byte-stream split and dictionary encoding.

    In log-probs the exponent bytes repeat and the mantissa bytes do not; likewise the high and low
    bytes of token ids. Byte-stream split separates them, so that the repeating bytes compress;
    dictionaries would only cost. Measured by `benchmarks/parquet.py`.
    """
    in_streams: list[str] = []
    in_dictionaries: list[str] = []
    for field in schema:
        path, kind = field.name, field.type
        while is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        # Arrow does not support byte-stream split for half precision.
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
