"""Which training steps a table has: one small column.

The rewards of a table, before its tokens are read: two small columns.

Whole rows of a table by their number, with every column: for reward functions.

Sample ids are unique: one trajectory counted twice would narrow every interval.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.decode import floats, hashed
from rcdiag.table.table import Batch, Table


def known_steps(dump: Table) -> list[int]:
    """All steps in ascending order; none where the table has no column `step`."""
    if "step" not in dump.schema.names:
        return []
    found: set[int] = set()
    for batch in dump.batches(["step"]):
        values = batch.table.column("step").drop_null().to_numpy()
        found.update(np.unique(values).tolist())
    return sorted(found)


def read_rewards(dump: Table) -> tuple[NDArray[np.uint64] | None, NDArray[np.float64]]:
    """Hash of the prompt group (None without groups) and reward of every row; NaN = unknown."""
    names = [name for name in ("group_id", "reward") if name in dump.schema.names]
    if "reward" not in names:
        return None, np.full(dump.num_rows, np.nan)
    groups, rewards = [], []
    for batch in dump.batches(names):
        rewards.append(floats(batch, "reward"))
        if "group_id" in names:
            groups.append(hashed(batch, "group_id"))
    return np.concatenate(groups) if groups else None, np.concatenate(rewards)


def read_rows(dump: Table, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
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


class UniqueSampleIds:
    """Collects 8 bytes per row while a table streams by; `check` at the end names two rows."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, batch: Batch) -> None:
        if "sample_id" in batch.table.column_names:
            self._hashes.append(hashed(batch, "sample_id"))

    def check(self, dump: Table) -> None:
        if not self._hashes:
            return
        hashes = np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(np.diff(hashes[order]) == 0)
        if len(same):
            first, second = order[same[0]], order[same[0] + 1]
            raise RcdiagError(
                f"{_where(dump, second)}: column `sample_id` repeats the id of "
                f"{_where(dump, first)} ({len(same)} repeated rows in all)",
                hint="was the dump appended to twice, or does a glob match a file and its copy?",
            )


def _where(dump: Table, row: int) -> str:
    file = next(file for file in dump.files if row < file.first_row + file.num_rows)
    return f"{file.path}, row {row - file.first_row}"
