"""Sample some prompt groups of a table, for a first look at a huge dump."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, setting
from rcdiag.table.arrow import as_numpy
from rcdiag.table.parquet_files import open_written
from rcdiag.table.scratch import Scratch
from rcdiag.table.stream import hashed
from rcdiag.table.survey import known_steps, number_groups
from rcdiag.table.table import RowsOfTable, Table
from rcdiag.table.writer import TableWriter

Numbers = NDArray[np.int64]


def draw_rows(table: Table, rows: int | None, seed: int, step: int | None = None) -> Table:
    """Sample whole prompt groups with about `rows` rows in total, spread over the table.

    The column `group_id` is read for all rows; the other columns only for row groups of the files
    that hold a sampled row. Without `group_id`, rows are sampled individually. Sampled rows keep
    their order, and their names in errors and results. With `step`, only rows of that training step
    are sampled. A table of at most `rows` rows is returned unchanged; None keeps all rows.
    """
    if rows is None:
        return table
    if rows < 1:
        raise RcdiagError(f"{setting('rows', rows)}: nothing to draw", hint="take 1 or more")
    if rows >= table.num_rows:
        return table
    numbers = np.arange(table.num_rows)
    if step is not None:
        steps = [as_numpy(batch.table[0]) for batch in table.batches(["step"])]
        numbers = np.flatnonzero(np.concatenate(steps) == step)
        if not len(numbers):
            raise RcdiagError(f"{table.name}: no step {step}", hint="see the column `step`")
    if rows < len(numbers):
        group = numbers
        if "group_id" in table.schema.names:
            batches = table.batches(["group_id"])
            hashes = np.concatenate([hashed(batch, "group_id") for batch in batches])
            keys, number_of = number_groups(hashes)  # groups are numbered by their first row
            group = number_of[np.searchsorted(keys, hashes)].astype(np.int64)[numbers]
        present = np.unique(group)
        drawn = present[_drawn(len(present), rows, len(numbers), seed)]
        numbers = numbers[np.isin(group, drawn)]
    scratch = Scratch()
    target = scratch.path / "drawn.parquet"
    with TableWriter(target, table.schema, table.metadata) as writer:
        for batch in table.batches(rows=numbers):
            writer.write(batch.table)
    some = replace(
        open_written(target, RowsOfTable(table.sources, table.for_workers(), numbers)),
        schema=table.schema,  # also columns that only rows that were not drawn have
        scratch=scratch,
        drawn_from=table,
        drawn=numbers,
        given_as=table.given_as,
        naming=table.naming,
        absent=table.absent,
    )
    if table.made_from is None:
        return some
    given = table.made_from
    return replace(some, made_from=replace(some, drawn_from=given, given_as=given.given_as))


def draw_rows_of_step(table: Table, rows: int | None, seed: int, step: int | None) -> Table:
    """Sample prompt groups of one training step, by default the last; None keeps all rows.

    In a table without steps they are sampled from all rows.
    """
    steps = [] if rows is None else known_steps(table)
    last = steps[-1] if steps else None
    return draw_rows(table, rows, seed, step if steps and step is not None else last)


def _drawn(groups: int, rows: int, all_rows: int, seed: int) -> Numbers:
    """Sample one group from each of several equal stretches, all with the same probability.

    The stretches begin at a random group and wrap around the end of the table (stratified sampling,
    Cochran 1977, Sampling Techniques, chapter 5).
    """
    wanted = min(max(round(rows * groups / all_rows), 1), groups)
    generator = np.random.default_rng(seed)
    edges = np.arange(wanted + 1) * groups // wanted
    inside = edges[:-1] + np.floor(generator.random(wanted) * np.diff(edges)).astype(np.int64)
    return (inside + generator.integers(groups)) % groups
