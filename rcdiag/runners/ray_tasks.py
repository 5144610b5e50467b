"""Functions that are called with parts, as tasks of a Ray cluster: what is lost is done again."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import Any

from rcdiag.errors import RcdiagError, setting
from rcdiag.extras import saying_what_to_install
from rcdiag.runners.runner import Made, Part

# So many times a task is done again whose process died or whose node was lost.
RETRIES = 3
# Tasks for each core that wait or run: enough that none is idle while results are added up.
AHEAD = 2
# Packages that must be the same on all nodes, so that numbers are.
SAME = ("rcdiag", "numpy", "pyarrow")


def call_with(
    function: Callable[[Part], Made], parts: Iterable[Part], cores: int
) -> Generator[Made]:
    """Call a function with every part, a core for each, and yield the results in order.

    The function travels once to each node. No more than AHEAD parts for each core wait or run, so
    that what travels is bounded in memory.

    Raises:
        RcdiagError: raised by the function, or for a part that failed 1 + RETRIES times.
    """
    ray = ray_module()
    shared = ray.put(ray.cloudpickle.dumps(function))
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
    due: deque[Any] = deque()
    for part in parts:
        sent = ray.cloudpickle.dumps(part)
        due.append(task.remote(_versions_here(), os.getcwd(), shared, sent))
        if len(due) >= AHEAD * max(cores, 1):
            yield _result(due.popleft())
    while due:
        yield _result(due.popleft())


def _call(expected: dict[str, str], folder: str, function: bytes, part: bytes) -> tuple[str, Any]:
    """Call a function with a part on a node; its result travels as bytes, which can be changed.

    `folder` is where the command runs: paths of files may be relative to it.
    """
    pickle = ray_module().cloudpickle
    try:
        _check_versions(expected)
        if os.path.isdir(folder):
            os.chdir(folder)
        return "made", pickle.dumps(pickle.loads(function)(pickle.loads(part)))
    except RcdiagError as error:
        return "error", (error.message, error.hint)


@cache
def _versions_here() -> dict[str, str]:
    """Return the versions that decide whether two processes make the same numbers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: importlib.metadata.version(name) for name in SAME}}


def _check_versions(expected: dict[str, str]) -> None:
    """Refuse to compute on a node whose versions differ from those of the command."""
    own = _versions_here()
    differs = [
        f"{name} {own[name]}, not {expected[name]}"
        for name in expected
        if own[name] != expected[name]
    ]
    if differs:
        raise RcdiagError(
            f"node {socket.gethostname()} of the cluster has {' and '.join(differs)} as here",
            hint="install the same on all nodes: numbers must not depend on where they are made",
        )


def _result(reference: Any) -> Any:
    """Wait for the result of a task, and raise the error that it ended with."""
    ray = ray_module()
    try:
        what, value = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _failed(error) from error
    if what == "error":
        raise RcdiagError(*value)
    return ray.cloudpickle.loads(value)


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
