"""Assign the rows of a dump to prompt groups: by the dump's ids, by their order or by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table import given
from rcdiag.table.arrow import as_numpy, from_numpy, lengths_of, values_of
from rcdiag.table.hashing import hashed_lists, mixed
from rcdiag.table.readers.reader import Rows
from rcdiag.table.schema import is_list
from rcdiag.table.trajectories import Ragged


class PromptGroups:
    """The prompt groups of a dump's rows, in order of first appearance."""

    def __init__(self, size: int | None, by_order: bool) -> None:
        """Set the number of rows per group, if the user gives it.

        `by_order` tells whether the rows of a group are consecutive in this format.
        """
        self._size = size
        self._by_order = by_order and size is not None
        self._rows = 0
        self._has_ids = False  # whether any rows came with a group id
        self._numbers: dict[int, int] = {}  # hash of a group's step and prompt -> group number
        self._counts: list[int] = []
        self.rule = ""  # a sentence on how groups were made; empty if there are none

    def add_to(self, table: pa.Table, rows: Rows) -> pa.Table:
        """Return rows with a column `group_id`, if they have one or one can be made."""
        first = self._rows
        self._rows += table.num_rows
        if "group_id" in table.column_names:
            self._take(table, rows)
            return table
        if self._has_ids:  # made-up ids could collide with the dump's own
            return table
        if self._by_order:
            self.rule = f"group_id: {self._size} consecutive rows are a prompt group, as given"
            numbers = (first + np.arange(table.num_rows)) // self._size
        elif "prompt_ids" in table.column_names:
            in_step = " of one step" if "step" in table.column_names else ""
            self.rule = f"group_id: rows{in_step} with equal prompts are a prompt group"
            names = [name for name in ("prompt_ids", "step") if name in table.column_names]
            numbers = self._number(hashed_rows(table, names).tolist())
        else:
            return table
        return table.append_column("group_id", from_numpy(np.asarray(numbers, np.int64)))

    def _take(self, table: pa.Table, rows: Rows) -> None:
        """Count the rows per group by the dump's own ids."""
        if self.rule:
            raise RcdiagError(
                f"{rows.where(0)}: has a group id, but rows before it have none",
                hint="convert the files that have group ids and those that have none separately",
            )
        self._has_ids = True
        if self._size is not None:
            self._number([hash(group) for group in table["group_id"].to_pylist()])

    def _number(self, hashes: Iterable[int]) -> NDArray[np.int64]:
        numbers = []
        for value in hashes:
            number = self._numbers.setdefault(value, len(self._counts))
            if number == len(self._counts):
                self._counts.append(0)
            self._counts[number] += 1
            numbers.append(number)
        return np.array(numbers, np.int64)

    def check(self, source: str) -> None:
        """Raise an error if groups do not have the given size."""
        if self._size is None:
            return
        if self.rule and self._by_order:
            given.check_divisible(self._rows, self._size, source)
        elif self._counts:
            given.check_group_sizes(np.array(self._counts), self._size, source)


def hashed_rows(table: pa.Table, names: Sequence[str]) -> NDArray[np.uint64]:
    """Return a hash of some columns (numbers or lists of numbers) of each row, [rows].

    A null hashes differently from 0 and from an empty list.
    """
    hashes = np.zeros(table.num_rows, np.uint64)
    for name in names:
        column = table[name].combine_chunks()
        if is_list(column.type):
            own = hashed_lists(Ragged.of(_words(values_of(column)), lengths_of(column)))
        else:
            own = mixed(_words(column))
        known = as_numpy(column.is_valid())
        hashes = mixed(hashes ^ np.where(known, own, np.uint64(1)))
    return hashes


def _words(numbers: pa.Array) -> NDArray[np.uint64]:
    """Return numbers as 64-bit words, equal words for equal numbers."""
    if not pt.is_floating(numbers.type):
        return as_numpy(numbers.fill_null(0) if numbers.null_count else numbers).astype(np.uint64)
    values = as_numpy(numbers).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)
