"""Sources that a user names -> trajectory tables: one, or several joined into one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rcdiag.errors import RcdiagError
from rcdiag.results import JoinReport
from rcdiag.table.columns import known_steps
from rcdiag.table.draw import draw_rows
from rcdiag.table.join import join_tables
from rcdiag.table.table import Table
from rcdiag.table.table import open_table as open_files
from rcdiag.table.trajectories import POLICY_NAME

# A parquet file, a directory, a glob, the files of one table, or a table that is open already.
Source = str | Path | Sequence[str | Path] | Table


def open_table(
    source: Source, *, columns: Mapping[str, str] | None = None, needed: Sequence[str] = ()
) -> Table:
    """Open a trajectory table: only the footers of its files are read.

    `source` is a parquet file, a directory or a glob of parquet files, or a list of them, which are
    the rows of one table in that order. `columns` maps the names that rcdiag knows to the names in
    the files: `{"rollout_log_probs": "inference_logprobs"}`. A table without tokens is refused, and
    the error names those of the columns in `needed` that it lacks too.
    """
    if not isinstance(source, Table):
        return open_files(source, columns, needed=needed)
    if columns:
        raise RcdiagError(
            "columns of a table that is open already cannot be mapped",
            hint="give the mapping to open_table(source, columns=...)",
        )
    return source


def drawn(table: Table, rows: int | None, seed: int) -> Table:
    """Draw prompt groups with about `rows` rows in all; None draws nothing."""
    return table if rows is None else draw_rows(table, rows, seed)


def drawn_of_step(table: Table, rows: int | None, seed: int, step: int | None) -> Table:
    """Draw prompt groups of one training step, by default the last; None draws nothing."""
    if rows is None:
        return table
    steps = known_steps(table)
    if not steps:
        return draw_rows(table, rows, seed)
    return draw_rows(table, rows, seed, steps[-1] if step is None else step)


def name_of(source: Source) -> str:
    """The source as a message names it."""
    if isinstance(source, Table):
        source = [file.name for file in source.sources]
    if isinstance(source, (str, Path)):
        return str(source)
    first, *more = source
    return f"{first} and {len(more)} more" if more else str(first)


@contextlib.contextmanager
def joined_tables(
    sources: Sequence[Source], columns: Mapping[str, str] | None
) -> Iterator[tuple[Table, Table, JoinReport | None]]:
    """Open one table, or several joined on `sample_id` in a folder that lasts as long as the block.

    Gives the table to compute from, the table that provenance names (all files that were given),
    and the report of the join, None for one table.
    """
    tables = [open_table(source, columns=columns) for source in sources]
    if not tables:
        raise RcdiagError("no table to open", hint="give at least one parquet file")
    if len(tables) == 1:
        yield tables[0], tables[0], None
        return
    with tempfile.TemporaryDirectory(prefix="rcdiag-") as folder:
        path = Path(folder) / "joined.parquet"
        joined, report = join_tables(tables, _short_names(tables, sources), path)
        files = tuple(file for table in tables for file in table.files)
        yield joined, replace(tables[0], files=files), report


def _short_names(tables: Sequence[Table], sources: Sequence[Source]) -> list[str]:
    """A different short name for each table, fit for the end of a policy's name."""
    names: list[str] = []
    for table, source in zip(tables, sources, strict=True):
        path = source if isinstance(source, (str, Path)) else table.name
        stem = "".join(c if POLICY_NAME.fullmatch(c) else "_" for c in Path(path).stem) or "table"
        names.append(stem if stem not in names else f"{stem}_{len(names) + 1}")
    return names
