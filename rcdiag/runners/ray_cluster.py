"""Engines on a Ray cluster: an actor for each set of GPUs, which gets parts and returns scores.

Rows travel to the actors and scores back through Ray, so that nodes need neither the table nor the
output: only rcdiag itself, and the checkpoint under the same path (or from the hub).
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from rcdiag.engines import BACKENDS, schedule
from rcdiag.engines.process import EngineProcess, Job
from rcdiag.engines.schedule import EngineLostError, OnTokens, RunningEngine
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting
from rcdiag.extras import saying_what_to_install
from rcdiag.files import write_bytes
from rcdiag.runners.devices import Devices
from rcdiag.runners.ray_tasks import call_everywhere, call_with
from rcdiag.runners.runner import Made, Part, RunnerKind

# So long an engine waits for a node with free GPUs or cores.
ROOM_S = 300


class EngineActor:
    """An engine on a node of the cluster, in a process of the actor's own."""

    def __init__(self, spec: dict[str, Any], max_length: int, weights: str | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        job = Job(
            spec=PolicySpec(**spec), max_length=max_length, folder=self._folder, weights=weights
        )
        self._engine = EngineProcess(job)

    def node(self) -> tuple[str, str]:
        """Return the name of the node that the actor runs on."""
        return "node", socket.gethostname()

    def load(self) -> tuple[str, Any]:
        """Wait until the model is loaded."""
        try:
            self._engine.load()
        except (EngineLostError, RcdiagError) as error:
            return self._failure(error)
        return "ready", None

    def score(self, part: schedule.Part) -> Iterator[tuple[str, Any]]:
        """Yield the tokens that were scored as they come, then the part's file."""
        file = self._folder / part.name
        heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            scored = pool.submit(self._engine.score, part, heard.put)
            scored.add_done_callback(lambda _: heard.put(None))
            yield from (("tokens", tokens) for tokens in iter(heard.get, None))
        error = scored.exception()
        if isinstance(error, (EngineLostError, RcdiagError)):
            yield self._failure(error)
            return
        scored.result()
        yield "part", file.read_bytes()
        file.unlink()

    def _failure(self, error: EngineLostError | RcdiagError) -> tuple[str, Any]:
        """Return an error with the end of the engine's log, which lies on this node."""
        lost = isinstance(error, EngineLostError)
        reason = error.reason if isinstance(error, EngineLostError) else error
        log = self._folder / "engine.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
        shutil.rmtree(self._folder, ignore_errors=True)
        return ("lost" if lost else "error"), (reason.message, reason.hint, text)


class RayEngine:
    """An actor of the cluster, as the schedule of parts sees it."""

    def __init__(self, actor: Any, job: Job, number: int) -> None:
        self._actor, self._job, self._number = actor, job, number

    def load(self) -> None:
        """Wait until the cluster has room for the actor, then until its model is loaded."""
        waiting = self._actor.node.remote()
        ready, _ = _ray().wait([waiting], timeout=ROOM_S)
        if not ready:
            raise EngineLostError(
                RcdiagError(
                    f"the cluster has had no room for engine {self._number + 1} for {ROOM_S} s",
                    hint="`ray status` shows what is in use",
                )
            )
        self._heard(waiting)
        self._heard(self._actor.load.remote())

    def score(self, part: schedule.Part, on_tokens: OnTokens) -> None:
        for reference in self._actor.score.options(num_returns="streaming").remote(part):
            value = self._heard(reference)
            if isinstance(value, int):
                on_tokens(value)
            else:
                write_bytes(self._job.folder / part.name, value)

    def close(self) -> None:
        _ray().kill(self._actor)

    def _heard(self, reference: Any) -> Any:
        """Return what the actor sent, or raise what went wrong there."""
        ray = _ray()
        try:
            what, value = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            where = f"engine {self._number + 1} on the cluster was lost"
            first = str(error).strip().splitlines()[0]
            raise EngineLostError(RcdiagError(f"{where}: {first}")) from error
        if what in ("lost", "error"):
            message, hint, log = value
            if log:
                file = self._job.folder / f"engine{self._number or ''}.log"
                file.write_text(log)
                hint = f"the end of what it printed on its node is in {file}"
            failure = RcdiagError(message, hint)
            raise EngineLostError(failure) if what == "lost" else failure
        return value


class RayRunner:
    """A Ray cluster: that of an address, that which runs here, or one started for the run."""

    def __init__(self, address: str, devices: Devices | None) -> None:
        if devices is not None and devices.names:
            raise RcdiagError(
                f"{setting('devices', ','.join(devices.names))}: Ray chooses the GPUs itself",
                hint=f"give their number: {setting('devices', devices.count)}",
            )
        self._address, self._devices = address, devices
        # What nodes say while this process is connected, Ray prints on stdout, which is ours.
        self._stdout = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> RayRunner:
        ray = _ray()
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
        _ray().shutdown()
        self._stdout.__exit__(kind, error, trace)

    @property
    def _nodes(self) -> list[dict[str, float]]:
        """Return what the nodes that are alive now have, by resource."""
        return [node["Resources"] for node in _ray().nodes() if node["Alive"]]

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

    @property
    def elsewhere(self) -> bool:
        """Tell that tasks on the cluster do the work of `map`."""
        return True

    def place(self) -> str:
        """Say how many nodes and cores do the work of a pass."""
        return f"on a Ray cluster of {self._size_of_cluster}, {self._cores} cores"

    def everywhere(self, function: Callable[[], Made]) -> list[Made]:
        """Call a function once on every node; nodes with other versions of rcdiag are refused."""
        return call_everywhere(function)

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Iterator[Made]:
        """Call a function with every part, on as many cores as the cluster has."""
        return call_with(function, parts, self._cores)

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
        size = self._size(job.spec)
        needs = {"num_gpus": size, "num_cpus": 1} if self._has_gpus else {"num_cpus": size}
        actor = (
            _ray()
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


def _ray() -> Any:
    with saying_what_to_install(f"{setting('on', 'ray')}: "):
        ray = importlib.import_module("ray")
    return ray


RAY = RunnerKind(
    name="ray",
    says="A Ray cluster: `ray` takes the one that runs here (or starts one), `ray:ADDRESS` "
    "connects to another. Each engine is an actor with its GPUs; nodes need rcdiag and the "
    "checkpoint, not the table.",
    choose=RayRunner,
    has_address=True,
)
