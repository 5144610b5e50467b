"""Rows whose log-probs under a policy were not recorded, null in the column, are counted here.

They are no part of any number of the policy: nothing is known of them. NaN is another thing, a
value that a policy gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.table.arrow import as_numpy
from rcdiag.table.batches import Batch, TableFile
from rcdiag.table.readers.footer import RowGroup
from rcdiag.table.readers.parquet import open_parquet, read_whole, row_groups_of
from rcdiag.table.table import Table

# Rows that are named for each policy.
FIRST_ROWS = 10


class Unobserved(Struct, frozen=True):
    """The rows of a table that lack the log-probs of at least one of some policies."""

    rows: int = 0
    by_policy: Mapping[str, int] = field(default_factory=dict)  # those with any such row
    first_rows: Mapping[str, list[int]] = field(default_factory=dict)  # numbers in the table


def unobserved(table: Table, policies: Sequence[str]) -> Unobserved:
    """Find the rows of a table that lack log-probs of a policy.

    The footers say of most columns that every row has a value; other columns are read.
    """
    lacking = {
        policy: _null_rows(table, f"{policy}_log_probs")
        for policy in policies
        if f"{policy}_log_probs" in table.schema.names
    }
    lacking = {policy: rows for policy, rows in lacking.items() if len(rows)}
    if not lacking:
        return Unobserved()
    return Unobserved(
        len(np.unique(np.concatenate(list(lacking.values())))),
        {policy: len(rows) for policy, rows in lacking.items()},
        {policy: rows[:FIRST_ROWS].tolist() for policy, rows in lacking.items()},
    )


def all_null(table: Table, column: str) -> bool:
    """Tell whether no row of a table has a value of a column of lists."""
    own = table.renames.get(column, column)
    for file in table.files:
        parquet = open_parquet(file.parquet)
        if own in parquet.schema_arrow.names and not all(
            _only_nulls(group, own) for group in row_groups_of(file.parquet)
        ):
            return False
    return len(_null_rows(table, column)) == table.num_rows


def with_log_probs(batch: Batch, policies: Sequence[str]) -> Batch:
    """Return the rows of a batch that have log-probs of all policies."""
    columns = [batch.table[f"{policy}_log_probs"] for policy in policies]
    if not any(column.null_count for column in columns):
        return batch
    known = [as_numpy(column.is_valid()) for column in columns]
    return batch.take(np.logical_and.reduce(known))


def _null_rows(table: Table, column: str) -> NDArray[np.int64]:
    """Return the rows of a table whose value of a column is null, ascending."""
    own = table.renames.get(column, column)
    parts = [file.first_row + rows for file in table.files for rows in _of(file, own)]
    return np.concatenate(parts)


def _of(file: TableFile, column: str) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each row group of a file whose value of a column is null."""
    parquet = open_parquet(file.parquet)
    if column not in parquet.schema_arrow.names:
        yield np.arange(file.num_rows)
        return
    first = 0
    for number, group in enumerate(row_groups_of(file.parquet)):
        if _nulls_and_values(group, column)[0] != 0:  # else the footer says that there are none
            values = read_whole(file.parquet, [column], number)[column]
            yield first + np.flatnonzero(as_numpy(values.is_null()))
        first += group.num_rows
    yield np.empty(0, np.int64)


def _only_nulls(group: RowGroup, column: str) -> bool:
    """Tell whether the footer does not deny that a row group has nulls and empty lists alone."""
    nulls, values = _nulls_and_values(group, column)
    return nulls is None or nulls == values


def _nulls_and_values(group: RowGroup, column: str) -> tuple[int | None, int]:
    """Return how many entries of a column are null or empty lists, and all of them.

    The first is None where the footer does not say it.
    """
    for chunk in group.columns:
        if chunk.path == column or chunk.path.startswith(f"{column}."):
            return chunk.null_count, chunk.num_values
    return None, 0
