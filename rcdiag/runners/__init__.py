"""Runners say where the work on a table is done: on this machine, or on a cluster.

To add one: a file with a `RunnerKind`, and its name in `RUNNERS`; or `RUNNERS.add(...)` in a
package of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

from rcdiag.registry import Registry
from rcdiag.runners.local import LOCAL
from rcdiag.runners.ray_cluster import RAY
from rcdiag.runners.runner import Runner, RunnerKind, run_on

__all__ = ["RUNNERS", "Runner", "RunnerKind", "runner_on"]

RUNNERS: Registry[RunnerKind] = Registry("runner", (LOCAL, RAY))


def runner_on(where: str, devices: str | int | None, workers: int | None = None) -> Runner:
    """Return the runner that a user names, `local`, `ray` or `ray:ADDRESS`, not started yet.

    `devices` are those that engines may use; `workers` is how many processes share a pass over a
    table, all cores where it is None.
    """
    return run_on(RUNNERS, where, None if devices is None else str(devices), workers)
