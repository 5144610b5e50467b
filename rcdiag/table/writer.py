"""Trajectory tables are written with encodings that suit log-probs, never half of a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from rcdiag.files import new_beside, not_writable
from rcdiag.table.arrow import lengths_of
from rcdiag.table.schema import FORMAT_VERSION, METADATA_KEY, TOKEN_IDS, column_spec
from rcdiag.table.unify import cast

# Rows are gathered until a row group holds about this many values of its largest column.
VALUES_PER_ROW_GROUP = 2_000_000


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
        self._pending_values += _largest_column(table)
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
        while pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
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


def _largest_column(table: pa.Table) -> int:
    lists = (column for column in table.columns if pt.is_list(column.type))
    return max((int(lengths_of(column).sum()) for column in lists), default=0)
