"""Rows that a reader yields for files, as plain lists."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Reader
from rcdiag.table.schema import check_types
from rcdiag.table.table import Table


@dataclass
class Converted:
    rows: list[dict[str, Any]]  # without columns that are null
    numbers: list[int]
    changes: dict[str, int]
    policies: dict[str, dict[str, Any]]

    def column(self, name: str) -> list[Any]:
        return [row.get(name) for row in self.rows]


def rows_of(reader: Reader, *files: Path, **given: Any) -> Converted:
    """Detect and read files in the reader's own order."""
    assert all(reader.detect(Peek(file)) for file in files)
    dump = Dump(files=tuple(sorted(files, key=reader.order)), given=given)
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    assert reader.read is not None
    for part in reader.read(dump):
        check_types(part.batch.schema, str(part.file))
        assert len(part.numbers) == part.batch.num_rows
        numbers += part.numbers.tolist()
        for row in part.batch.to_pylist():
            rows.append({name: value for name, value in row.items() if value is not None})
    return Converted(rows, numbers, dump.notes.changes, dump.notes.policies)


def refusal(reader: Reader, *files: Path, **given: Any) -> str:
    """Return the message with which a reader refuses files; it must name a hint too."""
    with pytest.raises(RcdiagError) as caught:
        rows_of(reader, *files, **given)
    assert caught.value.hint
    return str(caught.value)


def column(table: Table, name: str) -> list[Any]:
    return [value for batch in table.batches([name]) for value in batch.table[name].to_pylist()]


def write_lines(file: Path, records: Iterable[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def drawn_floats(rng: np.random.Generator, count: int) -> list[float]:
    """Return log-probs as trainers write them: float64 numbers exact in float32."""
    return (-rng.exponential(0.5, count)).astype(np.float32).astype(float).tolist()
