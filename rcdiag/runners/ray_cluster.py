"""RayRunner: a Ray cluster, with an engine per set of GPUs, and table passes on its cores.

Each part of a table is a task on one core; a task whose process or node is lost is repeated.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, first_line, setting
from rcdiag.extras import saying_what_to_install
from rcdiag.formats import plural
from rcdiag.runners.runner import OUTSIDE, Devices, Made, Part, RunnerKind

if TYPE_CHECKING:
    from rcdiag.engines.process import Job
    from rcdiag.engines.schedule import RunningEngine

# How often a task is repeated after its process died or its node was lost.
RETRIES = 3
# Tasks per core that wait or run: enough that no core is idle while results are merged.
AHEAD = 2
# Packages that must have the same version on all nodes, so that results are equal.
SAME = ("rcdiag", "numpy", "pyarrow")


def _call(expected: dict[str, str], folder: str, function: bytes, part: bytes) -> tuple[str, Any]:
    """Call a function for a part on a node; return its result as bytes, which are not read-only.

    `folder` is the working folder of the command: file paths may be relative to it.
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
    """Return the versions that must be equal for two processes to compute equal numbers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: importlib.metadata.version(name) for name in SAME}}


def _check_versions(expected: dict[str, str]) -> None:
    """Refuse to compute on a node whose versions differ from those of the command's machine."""
    own = _versions_here()
    differs = [
        f"{name} {own[name]}, not {expected[name]}"
        for name in expected
        if own[name] != expected[name]
    ]
    if differs:
        raise RcdiagError(
            f"node {socket.gethostname()} of the cluster has {' and '.join(differs)} as here",
            hint="install the same on all nodes: results must not depend on the node",
        )


def _result(reference: Any) -> Any:
    """Wait for the result of a task; raise the error that it ended with."""
    ray = ray_module()
    try:
        what, value = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise RcdiagError(
            f"a part of the table failed on the cluster: {type(error).__name__}: "
            f"{(lines or [''])[-1][:300]}",
            hint=f"it was tried {1 + RETRIES} times if its process or node was lost; `ray status` "
            "and Ray's logs say more, and without --on ray this machine does all of it",
        ) from error
    if what == "error":
        raise RcdiagError(*value)
    return ray.cloudpickle.loads(value)


def ray_module() -> Any:
    """Import Ray; if it is not installed, the error says what to install."""
    with saying_what_to_install(f"{setting('on', 'ray')}: "):
        return importlib.import_module("ray")


class RayRunner:
    """A Ray cluster: that of an address, the one that runs here, or one started for the run."""

    def __init__(self, address: str, devices: Devices | None, workers: int | None = None) -> None:
        if devices is not None and devices.names:
            raise RcdiagError(
                f"{setting('devices', ','.join(devices.names))}: Ray chooses the GPUs itself",
                hint=f"give their number: {setting('devices', devices.count)}",
            )
        self._address, self._devices, self._workers = address, devices, workers
        # Ray prints messages of nodes on stdout, which is reserved for the command's output.
        self._stdout = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> RayRunner:
        ray = ray_module()
        try:
            host, _, port = self._address.removeprefix("ray://").rpartition(":")
            if host and port.isdecimal():  # Ray itself retries for minutes if nothing listens
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(
                address=self._address or None,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=None if self._address else False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise RcdiagError(
                f"{setting('on', f'ray:{self._address}')}: no connection: {first_line(error)}",
                hint="is it the address that `ray start --head` or `ray status` prints?",
            ) from error
        self._stdout.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray_module().shutdown()
        self._stdout.__exit__(kind, error, trace)

    @property
    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive now."""
        return [node["Resources"] for node in ray_module().nodes() if node["Alive"]]

    @property
    def _cores(self) -> int:
        return sum(int(node.get("CPU", 0)) for node in self._nodes)

    @property
    def _size_of_cluster(self) -> str:
        return plural(len(self._nodes), "node")

    @property
    def _has_gpus(self) -> bool:
        return any(node.get("GPU", 0) >= 1 for node in self._nodes)

    def workers(self, tokens: int) -> int:
        """Return how many tasks run at a time: all cores of the cluster, or as many as allowed."""
        return max(1, self._cores if self._workers is None else min(self._cores, self._workers))

    def place(self, tokens: int) -> str:
        """Return a text that says how many nodes and cores do a pass."""
        return f"on {self.workers(tokens)} cores of a Ray cluster of {self._size_of_cluster}"

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Generator[Made]:
        """Call a function for every part, each a task with one core of the cluster.

        The function is sent to each node once. At most AHEAD parts per core wait or run, which
        bounds the memory of what is sent. A task whose process died or whose node was lost is
        repeated RETRIES times. Nodes with other versions of rcdiag are refused.
        """
        ray, cores = ray_module(), self.workers(0)
        shared = ray.put(ray.cloudpickle.dumps(function))
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
        due: deque[Any] = deque()
        for part in parts:
            sent = ray.cloudpickle.dumps(part)
            due.append(task.remote(_versions_here(), os.getcwd(), shared, sent))
            if len(due) >= AHEAD * cores:
                yield _result(due.popleft())
        while due:
            yield _result(due.popleft())

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines fit on the cluster: by GPUs, or by cores if it has no GPU.

        A backend that runs outside of rcdiag has one client process, on this machine.
        """
        if BACKENDS[spec.backend].runs_outside:
            return 1
        size = self._size(spec)
        name = "GPU" if self._has_gpus else "CPU"
        fitting = sum(int(node.get(name, 0) // size) for node in self._nodes)
        if not fitting:
            raise RcdiagError(
                f"policy `{spec.name}` takes {size:g} {name}: no node of the cluster has that many",
                hint="nodes have " + ", ".join(f"{node.get(name, 0):g}" for node in self._nodes),
            )
        if self._devices is None:
            return fitting
        allowed = self._devices.count // size if self._has_gpus else self._devices.count
        return max(1, min(fitting, int(allowed)))

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start an actor; it waits until the cluster has room for it."""
        from rcdiag.engines.process import EngineProcess
        from rcdiag.runners.ray_engine import EngineActor, RayEngine

        if BACKENDS[job.spec.backend].runs_outside:
            return EngineProcess(job)
        size = self._size(job.spec)
        needs = {"num_gpus": size, "num_cpus": 1} if self._has_gpus else {"num_cpus": size}
        actor = (
            ray_module()
            .remote(**needs)(EngineActor)
            .remote(job.spec.to_dict(), job.max_length, job.weights)
        )
        return RayEngine(actor, job, number)

    def plan(self, spec: PolicySpec, parts: int) -> str:
        """Say how many engines would score so many parts, and on what."""
        if BACKENDS[spec.backend].runs_outside:
            return OUTSIDE
        size = self._size(spec)
        unit = f"{'GPU' if self._has_gpus else 'CPU'}{'' if size == 1 else 's'}"
        engines = min(self.engines(spec), parts)
        return (
            f"{plural(engines, 'engine')} on a Ray cluster of {self._size_of_cluster}, "
            f"{'' if engines == 1 else 'each '}with {size:g} {unit}"
        )

    def idle(self, spec: PolicySpec) -> str:
        """Return nothing: engines take all GPUs of the cluster, or as many as the user allows."""
        return ""

    def _size(self, spec: PolicySpec) -> float:
        """Return the GPUs of one engine, or without GPUs the cores of the smallest node."""
        if self._has_gpus:
            return BACKENDS[spec.backend].gpus(spec.options)
        return max(1.0, min(cpus for node in self._nodes if (cpus := node.get("CPU", 0.0)) >= 1))


RAY = RunnerKind(
    name="ray",
    says="A Ray cluster: `ray` uses the one that runs here (or starts one), `ray:ADDRESS` "
    "connects to another. Each engine is an actor with its GPUs; nodes need rcdiag and the "
    "checkpoint. Nodes read recorded columns themselves, from storage that all of them see.",
    choose=RayRunner,
    has_address=True,
)
