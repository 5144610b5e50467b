"""Runners: where the work on a table is done, on this machine or on a cluster.

To add one, write a file with a `RunnerKind` and list it in `RUNNERS`; from another package, call
`RUNNERS.add(...)` (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError, setting
from rcdiag.registry import Registry
from rcdiag.runners.local import LOCAL
from rcdiag.runners.ray_cluster import RAY
from rcdiag.runners.runner import Devices, Runner, RunnerKind

__all__ = ["RUNNERS", "Runner", "RunnerKind", "runner_on"]

RUNNERS: Registry[RunnerKind] = Registry("runner", (LOCAL, RAY))


def runner_on(where: str, devices: str | int | None, workers: int | None = None) -> Runner:
    """Return the runner that a user names, `local`, `ray` or `ray:ADDRESS`, not started yet.

    `devices` are those that engines may use; `workers` is the number of processes that share a
    pass over a table, or None for one per core.
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise RcdiagError(
            f"{setting('workers', workers)}: not a number of processes",
            hint="1 reads the table in this process; by default there is one process per core",
        )
    name, colon, address = where.partition(":")
    kind = RUNNERS.find(name, "--on")
    if colon and not (kind.has_address and address):
        raise RcdiagError(
            f"{setting('on', where)}: `{name}` takes "
            f"{'an address after the colon' if kind.has_address else 'no address'}",
            hint=kind.says,
        )
    return kind.choose(address, None if devices is None else Devices.parse(str(devices)), workers)
