"""A dump format of somebody else: JSON lines, the first of which says who made them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rcdiag.table.readers.reader import Reader

TYPES = {
    "response_ids": pa.list_(pa.int32()),
    "prompt_ids": pa.list_(pa.int32()),
    "rollout_log_probs": pa.list_(pa.float64()),
    "old_log_probs": pa.list_(pa.float64()),
    "sample_id": pa.string(),
    "group_id": pa.int64(),
    "advantage": pa.float64(),
}
ROWS_AT_ONCE = 7


def read(path: Path) -> Iterator[pa.RecordBatch]:
    lines = path.read_text().splitlines()
    about, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    fields = [(name, TYPES[name]) for name in TYPES if name in rows[0]] if rows else []
    schema = pa.schema(fields, metadata={"rcdiag": json.dumps(about)})
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield pa.RecordBatch.from_pylist(rows[start : start + ROWS_AT_ONCE], schema)


TOY = Reader(
    name="toyjsonl",
    says="Toy: JSON lines, the first of which says who made them.",
    patterns=("*.toyjsonl",),
    detect=lambda paths: all(path.suffix == ".toyjsonl" for path in paths),
    read=read,
)
