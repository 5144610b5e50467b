"""Parquet: a column for each key, as W&B exports a run's history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.logs.reader import LogFile, LogReader
from rcdiag.table.readers.footer import MAGIC
from rcdiag.table.readers.parquet import open_parquet


def _read(file: LogFile) -> Iterator[Mapping[str, Any]]:
    for record in open_parquet(file.path).iter_batches():
        yield from record.to_pylist()


PARQUET = LogReader(
    name="parquet",
    says="a parquet file with a column for each key, as W&B exports a run's history",
    detect=lambda file: file.head.startswith(MAGIC),
    read=_read,
)
