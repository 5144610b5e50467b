"""How much memory this machine has left for a table, and whether its rows fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.table.table import Table

MEMINFO = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# What `score` keeps of every row until its end, for intervals by cluster and for all presets of a
# trainer. Measured as the slope of its peak memory over rows, with all presets of verl: 1,046 for
# rows of one token, 1,134 for rows of ten; and some more, for what long rows add.
BYTES_A_ROW = 1_200


def free_memory() -> int | None:
    """Return the free bytes of this machine or container; None where the system does not say."""
    try:
        lines = MEMINFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    free = 1024 * int(line.split()[1])
    try:
        return min(free, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return free


def check_rows_fit(table: Table) -> None:
    """Refuse a table with more rows than fit in the free memory, and say how many would."""
    free = free_memory()
    need = table.num_rows * BYTES_A_ROW
    if free is None or need <= free:
        return
    fitting = free // BYTES_A_ROW
    raise RcdiagError(
        f"{table.name}: {table.num_rows:,} rows would take some {need / 1e9:.1f} GB of memory, and "
        f"{free / 1e9:.1f} GB are free; {fitting:,} rows would fit",
        hint="draw whole prompt groups (--rows N), give a part of the files, or take a machine "
        "with more memory",
    )
