"""The process that an engine runs in: `python -m rcdiag.engines.worker`.

It may run in another environment, with Python 3.10 or later, which has the engine and numpy but
not rcdiag's other dependencies. So this module imports only numpy and the standard library.

It reads its job from stdin as one line of JSON, then parts: a line of JSON each, followed by the
bytes of the rows. It answers on the original stdout with lines of JSON and the bytes of scores.
Everything that the engine prints goes to the log.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import numpy as np

from rcdiag.engines.arrays import rows_from_bytes, scores_to_bytes
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.extras import saying_what_to_install


def run(job: dict[str, Any], parts: Iterator[bytes], say: Callable[..., None]) -> None:
    """Load the engine, report its provenance, then score the parts."""
    spec = PolicySpec(**job["spec"])
    module, _, name = job["engine"].partition(":")
    with saying_what_to_install(f"policy `{spec.name}`: on {socket.gethostname()} "):
        engine = attrgetter(name)(importlib.import_module(module))(
            spec, job["max_length"], Path(job["log"])
        )
    python = {"python": platform.python_version(), "numpy": np.__version__}

    def about() -> dict[str, Any]:
        return {"about": {**engine.provenance(), "host": socket.gethostname()}, "python": python}

    say("ready", **about())
    for content in parts:
        rows = rows_from_bytes(content)
        start = time.monotonic()
        scores = engine.score(rows, lambda tokens: say("tokens", tokens=tokens))
        seconds = round(time.monotonic() - start, 6)
        # The provenance is asked for again, since batches may have become smaller.
        say("part", scores_to_bytes(scores), seconds=seconds, **about())


def _incoming(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the rows of the parts that the parent sends, read in a thread.

    When the parent ends, even by kill -9, the pipe to our stdin closes, and this process ends at
    once, also in the middle of a part.
    """
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        while line := stream.readline():
            waiting.put(stream.read(json.loads(line)["bytes"]))
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return iter(waiting.get, None)


def main() -> None:
    """Run the job from stdin, then exit without cleaning up."""
    job = json.loads(sys.stdin.buffer.readline())
    # Ctrl-C reaches all processes of a terminal; the parent handles it and closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Stdout and stderr go to the log; messages to the parent go through the original stdout.
    parent = os.fdopen(os.dup(1), "wb")
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def say(event: str, content: bytes = b"", **more: Any) -> None:
        message = {"event": event, "bytes": len(content), **more}
        parent.write(json.dumps(message).encode() + b"\n" + content)
        parent.flush()

    parts = _incoming(sys.stdin.buffer)
    try:
        run(job, parts, say)
    except RcdiagError as error:
        say("error", message=error.message, hint=error.hint)
    except BaseException as error:
        # Three lines of the message: pydantic gives the reason in its second line.
        lines = [line.strip() for line in (str(error) or repr(error)).splitlines() if line.strip()]
        message = f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]
        say("crash", message=message)
        traceback.print_exc()
    sys.stderr.flush()
    # Engines leave threads and destructors behind that can hang at exit; all scores have been sent.
    os._exit(1)


if __name__ == "__main__":
    main()
