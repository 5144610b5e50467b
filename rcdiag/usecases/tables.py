"""Sources that a user names -> trajectory tables: one, or several joined into one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from rcdiag.errors import RcdiagError
from rcdiag.results import JoinReport
from rcdiag.table.columns import known_steps
from rcdiag.table.draw import draw_rows
from rcdiag.table.join import join_tables
from rcdiag.table.memory import InMemory, name_in_memory
from rcdiag.table.table import Table, open_rows
from rcdiag.table.table import open_table as open_files
from rcdiag.table.trajectories import POLICY_NAME

# A parquet file, a directory, a glob, the files of one table, a table that is open already, or one
# in memory: a data frame, an Arrow table or stream, a mapping of columns.
FileSource = str | Path | Sequence[str | Path]
Source = FileSource | Table | InMemory


def open_table(
    source: Source, *, columns: Mapping[str, str] | None = None, needed: Sequence[str] = ()
) -> Table:
    """Open a trajectory table: only the footers of its files are read, and perhaps a few rows.

    `source` is a parquet file, a directory or a glob of parquet files, or a list of them, which are
    the rows of one table in that order; or a table in memory, which is written to a temporary file:
    a pandas or polars frame, an Arrow table or stream, or a mapping of columns, each a list, an
    array or a tensor. `columns` maps the names that rcdiag knows to the names in the files:
    `{"rollout_log_probs": "inference_logprobs"}`. Names that trainers and engines use are read
    without it where nothing speaks against it; an empty name reads none. A table without tokens is
    refused, and the error names those of the columns in `needed` that it lacks too.
    """
    if isinstance(source, Table):
        if columns:
            raise RcdiagError(
                "columns of a table that is open already cannot be mapped",
                hint="give the mapping to open_table(source, columns=...)",
            )
        return source
    if isinstance(source, (str, Path)) or _are_paths(source):
        return open_files(cast(FileSource, source), columns, needed=needed)
    return open_rows(source, columns, needed)


def _are_paths(source: object) -> bool:
    """Tell whether a source is a list of files, and no table in memory."""
    return isinstance(source, Sequence) and name_in_memory(source) is None


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
        source = [file.path for file in source.files]
    if isinstance(source, (str, Path)):
        return str(source)
    if name := name_in_memory(source):
        return name
    first, *more = cast(Sequence[str | Path], source)
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
        path = source if isinstance(source, (str, Path)) else table.files[0].path
        stem = "".join(c if POLICY_NAME.fullmatch(c) else "_" for c in Path(path).stem) or "table"
        names.append(stem if stem not in names else f"{stem}_{len(names) + 1}")
    return names
