"""Functions that are called with parts, as tasks of a Ray cluster: what is lost is done again."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rcdiag.errors import RcdiagError, setting
from rcdiag.extras import saying_what_to_install
from rcdiag.runners.runner import Made, Part

# So often a task is done again whose process died or whose node was lost.
RETRIES = 3
# Tasks for each core that wait or run: enough that none is idle while results are added up.
AHEAD = 2
# Packages that must be the same on all nodes, so that numbers are.
SAME = ("rcdiag", "numpy", "pyarrow")

T = TypeVar("T")


def versions() -> dict[str, str]:
    """Return the versions that decide whether two processes understand each other."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: importlib.metadata.version(name) for name in SAME}}


def call_everywhere(function: Callable[[], Made]) -> list[Made]:
    """Call a function once on every node that is alive, and return what it gives there."""
    ray = ray_module()
    affinity = importlib.import_module("ray.util.scheduling_strategies")
    own = versions()
    waiting = []
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
            there = affinity.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, scheduling_strategy=there)(_call_alike)
            waiting.append(task.remote(own, function))
    made = []
    for reference in waiting:
        try:
            made.append(_result(ray.get(reference)))
        except (ray.exceptions.RaySystemError, ray.exceptions.TaskUnschedulableError):
            continue  # the node went while it was asked
        except ray.exceptions.RayError as error:
            raise _failed(error) from error
    return made


def call_with(
    function: Callable[[Part], Made], parts: Iterable[Part], cores: int
) -> Iterator[Made]:
    """Call a function with every part, a core for each, and yield what it gives in their order.

    The function travels once to each node. No more than AHEAD parts for each core wait or run, so
    that what travels is bounded in memory.
    """
    ray = ray_module()
    shared = ray.put(ray.cloudpickle.dumps(function))
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
    due: deque[Any] = deque()
    for part in parts:
        due.append(task.remote(shared, ray.cloudpickle.dumps(part)))
        if len(due) >= AHEAD * max(cores, 1):
            yield _heard(due.popleft())
    while due:
        yield _heard(due.popleft())


def _call(function: bytes, part: bytes) -> tuple[str, Any]:
    """Call a function with a part on a node; its result travels as bytes and can be changed."""
    pickle = ray_module().cloudpickle
    try:
        return "made", pickle.dumps(pickle.loads(function)(pickle.loads(part)))
    except RcdiagError as error:
        return "error", (error.message, error.hint)


def _call_alike(expected: dict[str, str], function: Callable[[], Any]) -> tuple[str, Any]:
    """Call a function on a node that has the same versions; say what differs otherwise."""
    own = versions()
    differs = [
        f"{name} {own[name]}, not {expected[name]}"
        for name in expected
        if own[name] != expected[name]
    ]
    if differs:
        return "error", (
            f"node {socket.gethostname()} of the cluster has {' and '.join(differs)} as here",
            "install the same on all nodes: numbers must not depend on where they are made",
        )
    return "made", function()


def _heard(reference: Any) -> Any:
    """Wait for what a task gives."""
    ray = ray_module()
    try:
        sent = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _failed(error) from error
    return ray.cloudpickle.loads(_result(sent))


def _result(sent: tuple[str, Any]) -> Any:
    what, value = sent
    if what == "error":
        raise RcdiagError(*value)
    return value


def _failed(error: Exception) -> RcdiagError:
    """Return the error for a task that a cluster did not bring to its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RcdiagError(
        f"a part of the table was not done on the cluster: {type(error).__name__}: "
        f"{(lines or [''])[-1][:300]}",
        hint=f"it was tried {1 + RETRIES} times where its process or node was lost; `ray status` "
        "and the logs of Ray say more, and without --on ray this machine does it alone",
    )


def ray_module() -> Any:
    """Import Ray; where it is not installed, the error says how to."""
    with saying_what_to_install(f"{setting('on', 'ray')}: "):
        return importlib.import_module("ray")
