"""An engine in a process of its own, which scores the parts of a table one by one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.engines import BACKENDS
from rcdiag.engines.arrays import rows_to_bytes, scores_from_bytes
from rcdiag.engines.backend import Backend
from rcdiag.engines.interpreter import OtherPython, OwnPython, from_anywhere
from rcdiag.engines.schedule import EngineLostError, OnTokens, ScoredPart, TablePart
from rcdiag.engines.scored_by import SECONDS
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError


class Job(Struct, frozen=True, kw_only=True):
    """What an engine must know before its first part."""

    spec: PolicySpec
    max_length: int  # tokens of the longest sequence, prompt and response
    folder: Path  # where the log goes
    log: str = "engine.log"  # the file in `folder` that takes what the engine prints
    weights: str | None = None  # fingerprint that the checkpoint must have where the engine runs

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the first line of what the process reads."""
        return {
            "spec": from_anywhere(self.spec),
            "engine": engine_address(BACKENDS[self.spec.backend]),
            "max_length": self.max_length,
            "log": os.path.abspath(self.folder / self.log),
        }

    def about(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a part's metadata hold of the policy and of its engine, which `said` that.

        Raises:
            RcdiagError: the checkpoint is not the one that the run was planned with.
        """
        own = said.get("weights_fingerprint")
        if self.weights is not None and own is not None and own != self.weights:
            raise RcdiagError(
                f"policy `{self.spec.name}`: on {said['host']} {self.spec.model} has other weights "
                f"(fingerprint {own}) than where the run was started ({self.weights})",
                hint="copy the same checkpoint to all nodes, or put it on a path that they share; "
                "if it was written to meanwhile, start again",
            )
        return {**BACKENDS[self.spec.backend].deciding(self.spec), **said}


class EngineProcess:
    """A process with one engine loaded; it ends when this one ends, even by kill -9."""

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        """Start the process, in this environment or the one that the policy names.

        `environment` is added to that of this process, which says what GPUs the engine may use;
        `cores` are the processor's that it may use, by default all.
        """
        self._job = job
        python = job.spec.options.get("python")
        self._python = OwnPython() if python is None else OtherPython(python)
        self._process = subprocess.Popen(
            [self._python.path, "-m", "rcdiag.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._python.folder,
            env={**self._python.environment, **(environment or {})},
        )
        if cores is not None:
            os.sched_setaffinity(self._process.pid, cores)

    def load(self) -> None:
        """Wait until the model is loaded."""
        self._send(self._job.to_dict())
        said, _ = self._listen("ready", lambda tokens: None)
        self._about(said)

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        """Score a part."""
        rows = rows_to_bytes(part.rows)
        self._send({"bytes": len(rows)}, rows)
        said, content = self._listen("part", on_tokens)
        try:
            scores = scores_from_bytes(content)
        except ValueError as error:
            raise self._error(f"it returned no arrays of numbers ({error})") from error
        return ScoredPart(scores=scores, about={**self._about(said), SECONDS: said["seconds"]})

    def _about(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a part's metadata hold, of what the process `said` of its engine."""
        about = self._job.about(said["about"])
        if isinstance(self._python, OtherPython):
            about["versions"] = {**about.get("versions", {}), **said["python"]}
        return about

    def close(self) -> None:
        """End the process: the engine must not outlive its work, nor keep the GPU's memory."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._python.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it had stopped reading
                    stream.close()

    def _send(self, message: Mapping[str, Any], content: bytes = b"") -> None:
        assert self._process.stdin is not None
        # Where the process has ended, what it said last is read next.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n" + content)
            self._process.stdin.flush()

    def _listen(self, awaited: str, on_tokens: OnTokens) -> tuple[dict[str, Any], bytes]:
        """Read messages of the process until the awaited kind comes, with its bytes."""
        assert self._process.stdout is not None
        last: dict[str, Any] = {}
        for line in self._process.stdout:
            last = json.loads(line)
            content = self._process.stdout.read(last["bytes"])
            if len(content) < last["bytes"]:  # it ended in the middle
                break
            if last["event"] == "tokens":
                on_tokens(last["tokens"])
            elif last["event"] == awaited:
                return last, content
        raise self._ended(last)

    def _ended(self, last: Mapping[str, Any]) -> Exception:
        """Return the error for a process that ended before its work; `last` is what it said."""
        code = self._process.wait()
        if last.get("event") == "error":
            return RcdiagError(last["message"], last["hint"])
        if last.get("event") == "crash":
            return self._error(last["message"])
        if code < 0:
            why = f"killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
            return EngineLostError(self._error(why))
        # The process ended before it took over its streams: an import failed.
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip()
        return self._error((said or f"exit code {code}").splitlines()[-1])

    def _error(self, why: str) -> RcdiagError:
        spec = self._job.spec
        what = f"{spec.backend}, {spec.dtype}, {spec.options or 'no options'}"
        return RcdiagError(
            f"policy `{spec.name}` ({what}): the engine failed: {why}",
            hint=f"what it printed is in {self._job.folder / self._job.log}; with -o FILE the same "
            "command goes on from the finished parts",
        )


def engine_address(backend: Backend) -> str:
    """Return where the engine's process finds what loads the engine: `module:function`."""
    module = getattr(backend.load, "__module__", "__main__")
    name = getattr(backend.load, "__qualname__", "<none>")
    if module == "__main__" or "<" in name:
        raise RcdiagError(
            f"backend `{backend.name}` is loaded by {module}.{name}, which another process cannot "
            "import",
            hint="`load` is a class or function at the top of a module that is installed",
        )
    return f"{module}:{name}"
