"""An engine in a separate process, which scores the parts of a table one by one."""

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
    """The description of an engine's work, sent to its process before the first part."""

    spec: PolicySpec
    max_length: int  # tokens of the longest sequence, prompt and response
    folder: Path  # of the log
    log: str = "engine.log"  # the file in `folder` for the engine's stdout and stderr
    weights: str | None = None  # expected fingerprint of the checkpoint on the engine's machine

    def to_dict(self) -> dict[str, Any]:
        """Return the job in the form that the process reads as its first line."""
        return {
            "spec": from_anywhere(self.spec),
            "engine": engine_address(BACKENDS[self.spec.backend]),
            "max_length": self.max_length,
            "log": os.path.abspath(self.folder / self.log),
        }

    def about(self, reported: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part's metadata: the policy, and the provenance that its engine reported.

        Raises:
            RcdiagError: the engine's checkpoint is not the one that the run was planned with.
        """
        own = reported.get("weights_fingerprint")
        if self.weights is not None and own is not None and own != self.weights:
            raise RcdiagError(
                f"policy `{self.spec.name}`: on {reported['host']} {self.spec.model} has other "
                f"weights (fingerprint {own}) than where the run was started ({self.weights})",
                hint="copy the same checkpoint to all nodes, or put it on a path that they share; "
                "if it was written to meanwhile, start again",
            )
        return {**BACKENDS[self.spec.backend].deciding(self.spec), **reported}


class EngineProcess:
    """A process with one engine loaded; it ends when this process ends, even by kill -9."""

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        """Start the process, in rcdiag's environment or the one that the policy names.

        `environment` is added to this process's variables; it says which GPUs the engine may use.
        `cores` are the CPU cores that it may use, by default all.
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
        message, _ = self._listen("ready", lambda tokens: None)
        self._about(message)

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        """Score a part; `on_tokens` is called with the tokens that have just been scored."""
        rows = rows_to_bytes(part.rows)
        self._send({"bytes": len(rows)}, rows)
        message, content = self._listen("part", on_tokens)
        try:
            scores = scores_from_bytes(content)
        except ValueError as error:
            raise self._error(f"it returned no arrays of numbers ({error})") from error
        about = {**self._about(message), SECONDS: message["seconds"]}
        return ScoredPart(scores=scores, about=about)

    def _about(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part's metadata from a message of the process."""
        about = self._job.about(message["about"])
        if isinstance(self._python, OtherPython):
            about["versions"] = {**about.get("versions", {}), **message["python"]}
        return about

    def close(self) -> None:
        """Kill the process, which frees the GPU's memory, and wait for its end."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._python.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # the process had stopped reading
                    stream.close()

    def _send(self, message: Mapping[str, Any], content: bytes = b"") -> None:
        assert self._process.stdin is not None
        # If the process has ended, `_listen` reads its last message next.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n" + content)
            self._process.stdin.flush()

    def _listen(self, awaited: str, on_tokens: OnTokens) -> tuple[dict[str, Any], bytes]:
        """Read messages of the process until one of the awaited kind; return it and its bytes."""
        assert self._process.stdout is not None
        last: dict[str, Any] = {}
        for line in self._process.stdout:
            last = json.loads(line)
            content = self._process.stdout.read(last["bytes"])
            if len(content) < last["bytes"]:  # the process ended within the message
                break
            if last["event"] == "tokens":
                on_tokens(last["tokens"])
            elif last["event"] == awaited:
                return last, content
        raise self._ended(last)

    def _ended(self, last: Mapping[str, Any]) -> Exception:
        """Return the error for a process that ended early; `last` is its last message."""
        code = self._process.wait()
        if last.get("event") == "error":
            return RcdiagError(last["message"], last["hint"])
        if last.get("event") == "crash":
            return self._error(last["message"])
        if code < 0:
            why = f"killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
            return EngineLostError(self._error(why))
        # The process ended before it redirected its streams to the log: an import failed.
        assert self._process.stderr is not None
        printed = self._process.stderr.read().decode(errors="replace").strip()
        return self._error((printed or f"exit code {code}").splitlines()[-1])

    def _error(self, why: str) -> RcdiagError:
        spec = self._job.spec
        options = [f"{key}={value}" for key, value in spec.options.items()]
        what = ", ".join([spec.backend, spec.dtype, *options])
        return RcdiagError(
            f"policy `{spec.name}` ({what}): the engine failed: {why}",
            hint=f"its output is in {self._job.folder / self._job.log}; with -o FILE the same "
            "command goes on from the finished parts",
        )


def engine_address(backend: Backend) -> str:
    """Return where the engine's process imports `Backend.load` from: `module:function`."""
    module = getattr(backend.load, "__module__", "__main__")
    name = getattr(backend.load, "__qualname__", "<none>")
    if module == "__main__" or "<" in name:
        raise RcdiagError(
            f"backend `{backend.name}` is loaded by {module}.{name}, which another process cannot "
            "import",
            hint="`load` is a class or function at the top of a module that is installed",
        )
    return f"{module}:{name}"
