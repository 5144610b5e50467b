"""Whole rows of a table by their number, with every column: for reward functions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rcdiag.dumps.reader import Dump


def read_rows(dump: Dump, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
    """Number in the table -> column -> value."""
    wanted = set(numbers)
    found: dict[int, dict[str, Any]] = {}
    for batch in dump.batches():
        first = batch.first_row
        inside = sorted(n - first for n in wanted if first <= n < first + batch.table.num_rows)
        if inside:
            rows = batch.table.take(inside).to_pylist()
            found |= {first + n: row for n, row in zip(inside, rows, strict=True)}
    return found
