"""A Ray cluster runs an engine on each set of its GPUs, and reads parts of a table on its cores."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from rcdiag.engines import BACKENDS
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting
from rcdiag.runners.devices import Devices
from rcdiag.runners.ray_tasks import call_with, ray_module
from rcdiag.runners.runner import Made, Part, RunnerKind

if TYPE_CHECKING:
    from rcdiag.engines.process import Job
    from rcdiag.engines.schedule import RunningEngine


class RayRunner:
    """A Ray cluster: that of an address, that which runs here, or one started for the run."""

    def __init__(self, address: str, devices: Devices | None, workers: int | None = None) -> None:
        if devices is not None and devices.names:
            raise RcdiagError(
                f"{setting('devices', ','.join(devices.names))}: Ray chooses the GPUs itself",
                hint=f"give their number: {setting('devices', devices.count)}",
            )
        self._address, self._devices, self._workers = address, devices, workers
        # What nodes say while this process is connected, Ray prints on stdout, which is ours.
        self._stdout = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> RayRunner:
        ray = ray_module()
        try:
            _answers(self._address)
            ray.init(
                address=self._address or None,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=None if self._address else False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise RcdiagError(
                f"{setting('on', f'ray:{self._address}')}: no connection: "
                f"{str(error).strip().splitlines()[0]}",
                hint="is it the address that `ray start --head` or `ray status` says?",
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
        """Return what the nodes that are alive now have, by resource."""
        return [node["Resources"] for node in ray_module().nodes() if node["Alive"]]

    @property
    def _cores(self) -> int:
        return sum(int(node.get("CPU", 0)) for node in self._nodes)

    @property
    def _size_of_cluster(self) -> str:
        nodes = len(self._nodes)
        return f"{nodes} {'node' if nodes == 1 else 'nodes'}"

    @property
    def _has_gpus(self) -> bool:
        return any(node.get("GPU", 0) >= 1 for node in self._nodes)

    def workers(self, tokens: int) -> int:
        """Return how many tasks run at a time: the cluster's cores, or as many as a user allows."""
        return max(1, self._cores if self._workers is None else min(self._cores, self._workers))

    def place(self, tokens: int) -> str:
        """Say how many nodes and cores do the work of a pass."""
        return f"on {self.workers(tokens)} cores of a Ray cluster of {self._size_of_cluster}"

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Generator[Made]:
        """Call a function with every part, as tasks of the cluster.

        A task whose process died or whose node was lost is done again; nodes with other versions of
        rcdiag are refused.
        """
        return call_with(function, parts, self.workers(0))

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines the cluster holds: by GPUs, or by nodes where it has none."""
        size = self._size(spec)
        name = "GPU" if self._has_gpus else "CPU"
        fitting = sum(int(node.get(name, 0) // size) for node in self._nodes)
        if not fitting:
            raise RcdiagError(
                f"policy `{spec.name}` takes {size:g} {name}: no node of the cluster has so many",
                hint="nodes have " + ", ".join(f"{node.get(name, 0):g}" for node in self._nodes),
            )
        if self._devices is None:
            return fitting
        allowed = self._devices.count // size if self._has_gpus else self._devices.count
        return max(1, min(fitting, int(allowed)))

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start an actor; it waits until the cluster has room for it."""
        from rcdiag.runners.ray_engine import EngineActor, RayEngine

        size = self._size(job.spec)
        needs = {"num_gpus": size, "num_cpus": 1} if self._has_gpus else {"num_cpus": size}
        actor = (
            ray_module()
            .remote(**needs)(EngineActor)
            .remote(job.spec.to_dict(), job.max_length, job.weights)
        )
        return RayEngine(actor, job, number)

    def plan(self, spec: PolicySpec) -> str:
        """Say how many engines of a policy would run, and on what."""
        each = f"{self._size(spec):g} {'GPU' if self._has_gpus else 'CPU'}"
        return (
            f"{self.engines(spec)} engines on a Ray cluster of {self._size_of_cluster}, each with "
            f"{each}"
        )

    def idle(self, spec: PolicySpec) -> str:
        """Say nothing: engines take all GPUs of the cluster, or as many as the user allows."""
        return ""

    def _size(self, spec: PolicySpec) -> float:
        """Return the GPUs of one engine, or without GPUs the cores of the smallest node."""
        if self._has_gpus:
            return BACKENDS[spec.backend].gpus(spec.options)
        return max(1.0, min(cpus for node in self._nodes if (cpus := node.get("CPU", 0.0)) >= 1))


def _answers(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT, for which Ray itself tries minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


RAY = RunnerKind(
    name="ray",
    says="A Ray cluster: `ray` takes the one that runs here (or starts one), `ray:ADDRESS` "
    "connects to another. Each engine is an actor with its GPUs; nodes need rcdiag and the "
    "checkpoint. Recorded columns are read by the nodes, from storage that all of them see.",
    choose=RayRunner,
    has_address=True,
)
