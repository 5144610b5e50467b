"""How much memory is free on this machine, and whether a table's rows fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.table.table import Table

MEMINFO = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Bytes that `score` keeps per row until its end, for intervals by cluster and for all presets of a
# trainer. Measured as the slope of peak memory over rows, with all presets of verl: 1,046 for rows
# of one token and 1,134 for rows of ten; the rest is a margin for longer rows.
BYTES_A_ROW = 1_200


def free_memory() -> int | None:
    """Return the free memory of this machine or container in bytes; None if it is unknown."""
    try:
        lines = MEMINFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    free = 1024 * int(line.split()[1])
    try:
        return min(free, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # not in a container, or in one without a limit (`max`)
        return free


def check_rows_fit(table: Table) -> None:
    """Raise an error if a table has more rows than fit in free memory; it says how many fit."""
    free = free_memory()
    need = table.num_rows * BYTES_A_ROW
    if free is None or need <= free:
        return
    fitting = free // BYTES_A_ROW
    raise RcdiagError(
        f"{table.name}: {table.num_rows:,} rows need about {need / 1e9:.1f} GB of memory, but "
        f"only {free / 1e9:.1f} GB are free; {fitting:,} rows would fit",
        hint="sample whole prompt groups (--rows N), give a part of the files, or use a machine "
        "with more memory",
    )
