"""An engine in a process of its own, which scores the parts of a table one by one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.engines.schedule import EngineLostError, OnTokens, TablePart
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError


class Job(Struct, frozen=True, kw_only=True):
    """What an engine must know before its first part."""

    spec: PolicySpec
    max_length: int  # tokens of the longest sequence, prompt and response
    folder: Path  # where finished parts go
    log: str = "engine.log"  # the file in `folder` that takes what the engine prints
    weights: str | None = None  # fingerprint that the checkpoint must have where the engine runs

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the first line of what the process reads."""
        return {
            "spec": self.spec.to_dict(),
            "max_length": self.max_length,
            "weights": self.weights,
            "folder": str(self.folder),
            "log": str(self.folder / self.log),
        }


class EngineProcess:
    """A process with one engine loaded; it ends when this one ends, even by kill -9."""

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str] | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        """Start the process.

        `environment` is added to that of this process, which says what GPUs the engine may use;
        `cores` are the processor's that it may use, by default all.
        """
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rcdiag.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**_environment(), **(environment or {})},
        )
        if cores is not None:
            os.sched_setaffinity(self._process.pid, cores)

    def load(self) -> None:
        """Wait until the model is loaded."""
        self._send(self._job.to_dict())
        self._listen("ready", lambda tokens: None)

    def score(self, part: TablePart, on_tokens: OnTokens) -> None:
        """Score a part, which is a file in the job's folder then."""
        self._send({"part": part.name, **part.place, "bytes": len(part.rows)}, part.rows)
        self._listen("part", on_tokens)

    def close(self) -> None:
        """End the process: the engine must not outlive its work, nor keep the GPU's memory."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
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

    def _listen(self, awaited: str, on_tokens: OnTokens) -> None:
        """Read messages of the process until the awaited kind comes."""
        assert self._process.stdout is not None
        last: dict[str, Any] = {}
        for line in self._process.stdout:
            last = json.loads(line)
            if last["event"] == "tokens":
                on_tokens(last["tokens"])
            elif last["event"] == awaited:
                return
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


def _environment() -> dict[str, str]:
    """Return the environment of a worker, which imports nothing from the current directory.

    `python -m` would look for modules there first: a file `torch.py` beside a downloaded checkpoint
    would run. What the worker starts itself inherits this. An empty or relative entry of PYTHONPATH
    means the current directory, too. Where rcdiag is not installed, its own folder is added.
    """
    own = str(Path(__file__).resolve().parents[2])
    entries = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if os.path.isabs(entry)
    ]
    if own not in (*entries, sysconfig.get_path("purelib")):
        entries.append(own)
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}
