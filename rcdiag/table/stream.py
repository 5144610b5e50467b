"""A table is read as a stream of checked trajectories: whole, or in given ranges of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.batches import Batch, RowRange
from rcdiag.table.decode import columns_needed, decode, hashed
from rcdiag.table.observed import with_log_probs
from rcdiag.table.table import Table
from rcdiag.table.trajectories import Trajectories


class UniqueSampleIds:
    """Refuses a table that holds a sample twice, which would narrow every interval.

    It collects 8 bytes for each row while the table streams by.
    """

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, batch: Batch) -> None:
        """Take in the ids of some rows."""
        if "sample_id" in batch.table.column_names:
            self._hashes.append(hashed(batch, "sample_id"))

    def check(self, dump: Table) -> None:
        """Raise an error that names two rows with one id; `dump` is the table that went by."""
        if not self._hashes:
            return
        hashes = np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(np.diff(hashes[order]) == 0)
        if len(same):
            first, second = int(order[same[0]]), int(order[same[0] + 1])
            raise RcdiagError(
                f"{dump.where(second)}: column `sample_id` repeats the id of "
                f"{dump.where(first)} ({len(same)} repeated rows in all)",
                hint="was the dump appended to twice, or does a glob match a file and its copy?",
            )


def read_trajectories(
    dump: Table,
    policies: Sequence[str],
    *,
    prompts: bool = False,
    origin: bool = False,
    between: RowRange | None = None,
) -> Iterator[Trajectories]:
    """Yield the rows that have recorded log-probs of all `policies`, with them.

    Rows where they are null, which `unobserved` counts, are left out. `prompts` adds the prompts,
    `origin` how each row was sampled. `between` are the first row that is read and the row after
    the last.
    """
    dump.require(*(f"{policy}_log_probs" for policy in policies))
    names = columns_needed(
        dump.schema.names, policies, prompts=prompts, details=True, origin=origin
    )
    for batch in dump.batches(names, between):
        known = with_log_probs(batch, policies)
        if known.table.num_rows:
            yield decode(known, policies, prompts=prompts, details=True, origin=origin)


def read_chunks(
    dump: Table, ranges: Sequence[RowRange], names: Sequence[str] | None = None
) -> Iterator[list[Batch]]:
    """Yield for each of the ascending, disjoint `ranges` of rows the batches that make it up."""
    return _cut(dump.batches(names), ranges)


def _cut(batches: Iterable[Batch], ranges: Sequence[RowRange]) -> Iterator[list[Batch]]:
    """Cut and gather batches so that those of each range are together."""
    waiting = iter(ranges)
    current = next(waiting, None)
    parts: list[Batch] = []
    for batch in batches:
        end = batch.first_row + batch.table.num_rows
        while current is not None and current[0] < end:
            start = max(current[0], batch.first_row)
            stop = min(current[1], end)
            parts.append(batch.slice(start - batch.first_row, stop - batch.first_row))
            if current[1] > end:
                break
            yield parts
            parts, current = [], next(waiting, None)
        if current is None:
            return


def joined(parts: Sequence[Batch]) -> pa.Table:
    """Join the batches of one range into one Arrow table."""
    return pa.concat_tables([part.table for part in parts])


def whole(parts: Sequence[Batch]) -> Batch:
    """Join the batches of one range into one batch; rows count in the file of the first.

    A range that spans files would misname rows in errors, so check rows before joining them.
    """
    return Batch(joined(parts).combine_chunks(), parts[0].file, parts[0].row_in_file)
