"""A dump format of a plugin: JSON lines, the first of which identifies the writer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Reader, Rows

TYPES = {
    "response_ids": pa.list_(pa.int32()),
    "prompt_ids": pa.list_(pa.int32()),
    "rollout_log_probs": pa.list_(pa.float64()),
    "old_log_probs": pa.list_(pa.float64()),
    "sample_id": pa.string(),
    "group_id": pa.int64(),
    "advantage": pa.float64(),
}
# A dump's own ids may be words.
KINDS = {name: kind for name, kind in TYPES.items() if name != "group_id"}
ROWS_AT_ONCE = 7


def write_toy(
    path: Path, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any] | None = None
) -> Path:
    """Write a dump; `about` goes into its first line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"format": "toy", **(about or {})}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def detect(peek: Peek) -> bool:
    return peek.record.get("format") == "toy"


def read(dump: Dump) -> Iterator[Rows]:
    for path in dump.files:
        with path.open() as lines:
            about = json.loads(next(lines))
            for policy, facts in about.get("policies", {}).items():
                dump.notes.describe(policy, **facts)
            row = 0
            while some := [json.loads(line) for line in islice(lines, ROWS_AT_ONCE)]:
                names = {name for row in some for name in row}
                columns = [*filter(names.__contains__, TYPES), *sorted(names - TYPES.keys())]
                arrays = {
                    name: pa.array([row.get(name) for row in some], KINDS.get(name))
                    for name in columns
                }
                numbers = np.arange(row, row + len(some))
                yield Rows(pa.record_batch(arrays), path, numbers)
                row += len(some)


TOY = Reader(
    name="toyjsonl",
    says="Toy: JSON lines, the first of which says who made them.",
    patterns=("*.toyjsonl",),
    detect=detect,
    read=read,
    grouped_by_order=True,
)
