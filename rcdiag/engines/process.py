"""Run one policy's engine in a process of its own, and listen to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.files import write_text


def run_engine(job: dict[str, Any], on_tokens: Callable[[int], None]) -> None:
    """Start the worker process on a job and wait for its end.

    `on_tokens` is called with 0 once the model is loaded, then with the number of tokens that have
    just been scored.
    """
    file = Path(job["folder"]) / "job.json"
    write_text(file, json.dumps(job))
    command = [sys.executable, "-m", "rcdiag.engines.worker", str(file)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=_environment()
    ) as worker:
        try:
            last = _listen(worker, on_tokens)
            code = worker.wait()
        finally:
            # Interrupted or failed: the engine must not outlive us, nor keep the GPU's memory.
            if worker.poll() is None:
                worker.kill()
        if last.get("event") == "error":
            raise RcdiagError(last["message"], last["hint"])
        if code != 0 or last.get("event") != "done":
            raise _crashed(job, last, code, worker)


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


def _listen(worker: subprocess.Popen[str], on_tokens: Callable[[int], None]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    assert worker.stdout is not None
    for line in worker.stdout:
        last = json.loads(line)
        if last["event"] == "ready":
            on_tokens(0)
        elif last["event"] == "tokens":
            on_tokens(last["tokens"])
    return last


def _crashed(
    job: dict[str, Any], last: dict[str, Any], code: int, worker: subprocess.Popen[str]
) -> RcdiagError:
    spec = job["spec"]
    why = last.get("message", "")
    if code < 0:
        why = f"killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    elif not why and worker.stderr is not None:
        # The process ended before it took over its streams: an import failed.
        why = (worker.stderr.read().strip() or f"exit code {code}").splitlines()[-1]
    what = f"{spec['backend']}, {spec['dtype']}, {spec['options'] or 'no options'}"
    return RcdiagError(
        f"policy `{spec['name']}` ({what}): the engine failed: {why}",
        hint=f"what it printed is in {job['log']}; with -o FILE the same command goes on from "
        "the finished parts",
    )
