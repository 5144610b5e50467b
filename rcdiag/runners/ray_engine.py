"""RayEngine: an engine on a Ray cluster, as an actor that scores parts of a table.

Ray sends rows to the actors and scores back. Nodes therefore need neither the table nor the output,
only rcdiag itself and the checkpoint, under the same path or from the hub.
"""

from __future__ import annotations

import queue
import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.interpreter import check_python
from rcdiag.engines.process import EngineProcess, Job
from rcdiag.engines.schedule import EngineLostError, OnTokens, ScoredPart, TablePart
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, first_line
from rcdiag.runners.ray_cluster import ray_module

# How long an engine waits for a node with free GPUs or cores, in seconds.
ROOM_S = 300


class EngineActor:
    """An engine on a node of the cluster, in a child process of the actor."""

    def __init__(self, spec: dict[str, Any], max_length: int, weights: str | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        self._job = Job(
            spec=PolicySpec(**spec), max_length=max_length, folder=self._folder, weights=weights
        )
        self._engine: EngineProcess | None = None

    def node(self) -> tuple[str, str]:
        """Return the host name of the actor's node."""
        return "node", socket.gethostname()

    def load(self) -> tuple[str, Any]:
        """Start the process and wait until the model is loaded."""
        try:
            check_python(self._job.spec, BACKENDS[self._job.spec.backend])
            self._engine = EngineProcess(self._job)
            self._engine.load()
        except (EngineLostError, RcdiagError) as error:
            return self._failure(error)
        return "ready", None

    def score(self, part: TablePart) -> Iterator[tuple[str, Any]]:
        """Yield the numbers of scored tokens as they are reported, then the scores."""
        assert self._engine is not None, "it is loaded first"
        heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            scored = pool.submit(self._engine.score, part, heard.put)
            scored.add_done_callback(lambda _: heard.put(None))
            yield from (("tokens", tokens) for tokens in iter(heard.get, None))
        error = scored.exception()
        if isinstance(error, (EngineLostError, RcdiagError)):
            yield self._failure(error)
            return
        yield "part", scored.result()

    def _failure(self, error: EngineLostError | RcdiagError) -> tuple[str, Any]:
        """Return an error with the end of the engine's log, which is on this node."""
        lost = isinstance(error, EngineLostError)
        reason = error.reason if isinstance(error, EngineLostError) else error
        log = self._folder / "engine.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
        shutil.rmtree(self._folder, ignore_errors=True)
        return ("lost" if lost else "error"), (reason.message, reason.hint, text)


class RayEngine:
    """An actor of the cluster, with the interface of an engine."""

    def __init__(self, actor: Any, job: Job, number: int) -> None:
        self._actor, self._job, self._number = actor, job, number

    def load(self) -> None:
        """Wait until the cluster has room for the actor, then until its model is loaded."""
        waiting = self._actor.node.remote()
        ready, _ = ray_module().wait([waiting], timeout=ROOM_S)
        if not ready:
            raise EngineLostError(
                RcdiagError(
                    f"the cluster has had no room for engine {self._number + 1} for {ROOM_S} s",
                    hint="`ray status` shows what is in use",
                )
            )
        self._heard(waiting)
        self._heard(self._actor.load.remote())

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        for reference in self._actor.score.options(num_returns="streaming").remote(part):
            value = self._heard(reference)
            if isinstance(value, ScoredPart):
                return value
            on_tokens(value)
        raise AssertionError("an actor's last message is a scored part or an error")

    def close(self) -> None:
        ray_module().kill(self._actor)

    def _heard(self, reference: Any) -> Any:
        """Return what the actor sent, or raise the error that it reports."""
        ray = ray_module()
        try:
            what, value = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            where = f"engine {self._number + 1} on the cluster was lost"
            raise EngineLostError(RcdiagError(f"{where}: {first_line(error)}")) from error
        if what in ("lost", "error"):
            message, hint, log = value
            if log:
                file = self._job.folder / f"engine{self._number or ''}.log"
                file.write_text(log)
                hint = f"the end of what it printed on its node is in {file}"
            failure = RcdiagError(message, hint)
            raise EngineLostError(failure) if what == "lost" else failure
        return value
