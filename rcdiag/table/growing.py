"""A parquet file is written whose columns and metadata are known only after its last row."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.table.unify import common_schema, conformed
from rcdiag.table.writer import TableWriter

# Rows that are copied at a time where parts are brought to one schema.
ROWS_PER_COPY = 512
# Pieces of rows, of a few MB each, that may wait to be encoded. Several of them make a row group,
# which is encoded when the last has come: with fewer the reader stands still meanwhile.
MOST_WAITING = 4


class GrowingWriter:
    """A writer of parquet that takes rows with new columns, and becomes `path` when all went well.

    Rows are written once where all have the same columns. A new column begins a part, and the
    parts are copied into one file at the end; so is a part of which columns are to be left out.
    Rows are encoded in a thread, while the next ones are read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._schema: pa.Schema | None = None
        self._parts: list[Path] = []
        self._writer: TableWriter | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._encoding: deque[Future[None]] = deque()  # rows that the thread has not written yet
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
        rows = conformed(table, self._schema)
        self._encoding.append(self._thread.submit(self._writer.write, rows))
        self._wait(MOST_WAITING)

    def _wait(self, most: int) -> None:
        """Wait until the thread has at most so many pieces of work left; its errors are raised."""
        while len(self._encoding) > most:
            self._encoding.popleft().result()

    def finish(self, metadata: dict, without: Collection[str] = ()) -> pa.Schema | None:
        """Complete the file, without some columns; returns its schema, None where no row came."""
        if self._schema is None or self._writer is None:
            return None
        schema = pa.schema([field for field in self._schema if field.name not in without])
        # Null is no type that a file can hold: nothing was ever known of such a column.
        schema = pa.schema([field for field in schema if not pa.types.is_null(field.type)])
        self._wait(0)
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
            self._wait(0)
            writer, self._writer = self._writer, None
            writer.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._writer is not None:
            self._writer.__exit__(kind or RuntimeError, error, traceback)
        for part in self._parts:
            part.unlink(missing_ok=True)
