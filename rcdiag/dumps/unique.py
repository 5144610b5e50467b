"""Sample ids are unique: one trajectory counted twice would narrow every interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.dumps.decode import hashed
from rcdiag.dumps.reader import Batch, Dump
from rcdiag.errors import RcdiagError


class UniqueSampleIds:
    """Collects 8 bytes per row while a table streams by; `check` at the end names two rows."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, batch: Batch) -> None:
        if "sample_id" in batch.table.column_names:
            self._hashes.append(hashed(batch, "sample_id"))

    def check(self, dump: Dump) -> None:
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


def _where(dump: Dump, row: int) -> str:
    file = next(file for file in dump.files if row < file.first_row + file.num_rows)
    return f"{file.path}, row {row - file.first_row}"
