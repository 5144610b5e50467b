"""How much memory this machine has left for a table, and whether its rows fit."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.table.table import Table

MEMINFO = Path("/proc/meminfo")
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# What `score` keeps of every row until its end, for intervals by cluster and for all presets of a
# trainer: the slope of peak memory over rows, which is 250 for rows of one token and up to 450 for
# long ones with all presets of verl, and some more.
BYTES_A_ROW = 500


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


def hand_back_freed_memory() -> None:
    """Hand the memory that a pass over a table has freed back to the system, where glibc holds it.

    What comes after the pass, such as a result and its JSON, is many small objects, which Python
    keeps elsewhere: they would come on top of what the pass took.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
