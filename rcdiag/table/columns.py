"""Parts of a table are read by themselves: a small column of all rows, or a few whole rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.table.arrow import as_numpy
from rcdiag.table.decode import floats, hashed, token_ids
from rcdiag.table.table import Table


def known_steps(dump: Table) -> list[int]:
    """Return the training steps of a table, ascending; none where it has no column `step`."""
    if "step" not in dump.schema.names:
        return []
    steps: set[int] = set()
    for batch in dump.batches(["step"]):
        values = as_numpy(batch.table.column("step").drop_null())
        steps.update(np.unique(values).tolist())
    return sorted(steps)


def read_groups_and_rewards(
    dump: Table,
) -> tuple[NDArray[np.uint64] | None, NDArray[np.float64]]:
    """Return every row's prompt group as a hash (None without), and reward (NaN = unknown)."""
    names = [name for name in ("group_id", "reward") if name in dump.schema.names]
    groups, rewards = [], []
    for batch in dump.batches(names) if names else ():
        if "group_id" in names:
            groups.append(hashed(batch, "group_id"))
        if "reward" in names:
            rewards.append(floats(batch, "reward"))
    return (
        np.concatenate(groups) if groups else None,
        np.concatenate(rewards) if rewards else np.full(dump.num_rows, np.nan),
    )


def number_groups(groups: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the different hashes of prompt groups, ascending, and the number of each.

    Groups are numbered as they appear: what depends on a number does not depend on their names.
    """
    keys, first = np.unique(groups, return_index=True)
    numbers = np.empty(len(keys), np.uint64)
    numbers[np.argsort(first)] = np.arange(len(keys), dtype=np.uint64)
    return keys, numbers


# Tokens that are counted to find frequent ids.
TOKENS_COUNTED = 2_000_000


def frequent_ids(dump: Table) -> NDArray[np.int32]:
    """Return the token ids of the first TOKENS_COUNTED response tokens, the most frequent first.

    Equally frequent ids stand in the order in which they appear, so that the order of the result
    does not depend on how ids are numbered.
    """
    read, tokens = [], 0
    for batch in dump.batches(["response_ids"]):
        read.append(token_ids(batch, "response_ids").values)
        tokens += len(read[-1])
        if tokens >= TOKENS_COUNTED:
            break
    return by_frequency(np.concatenate(read)) if read else np.empty(0, np.int32)


def by_frequency(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the distinct ids, the most frequent first, then the first to appear."""
    distinct, first, counts = np.unique(ids, return_index=True, return_counts=True)
    return distinct[np.lexsort((first, -counts))]


def read_rows(dump: Table, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of these numbers (counted over the whole table), with every column.

    The result maps row number -> column -> value, as reward functions take rows.
    """
    row_numbers = set(numbers)
    by_number: dict[int, dict[str, Any]] = {}
    for batch in dump.batches():
        first = batch.first_row
        inside = sorted(n - first for n in row_numbers if first <= n < first + batch.table.num_rows)
        if inside:
            rows = batch.table.take(inside).to_pylist()
            by_number |= {first + n: row for n, row in zip(inside, rows, strict=True)}
    return by_number
