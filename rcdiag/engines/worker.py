"""The process that an engine runs in: `python -m rcdiag.engines.worker`.

It reads its job from stdin, one line of JSON, then parts: a line of JSON each and the bytes of an
Arrow stream. It speaks JSON lines on what was stdout; all that the engine prints goes to the log.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from rcdiag.engines import BACKENDS
from rcdiag.engines.scored_by import SECONDS, TOKENS
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.extras import saying_what_to_install
from rcdiag.table.parts import score_table, write_part
from rcdiag.table.stream import decode
from rcdiag.table.table import RowBatch, TableFile
from rcdiag.table.trajectories import Scores, Trajectories

SCORES = ("log_probs", "entropy", "top_ids", "top_log_probs")
Say = Callable[[dict[str, Any]], None]


def run(job: dict[str, Any], parts: Iterator[tuple[dict[str, Any], bytes]], say: Say) -> None:
    """Load the engine, then score the parts; the file of a part appears whole or not at all."""
    spec = PolicySpec(**job["spec"])
    with saying_what_to_install(f"policy `{spec.name}`: on {socket.gethostname()} "):
        engine = BACKENDS[spec.backend].load(spec, job["max_length"])
    folder = Path(job["folder"])
    about = {**spec.to_dict(), **engine.provenance(), "host": socket.gethostname()}
    _check_weights(spec, job["weights"], about)
    say({"event": "ready"})
    for part, content in parts:
        rows = pa.ipc.open_stream(content).read_all()
        # Errors name the file and row that a part comes from.
        file = TableFile(Path(part["file"]), part["row"] + rows.num_rows, 0)
        batch = RowBatch(rows.combine_chunks(), file, part["row"])
        trajectories = decode(batch)
        prompts, responses = trajectories.prompt_ids, trajectories.response_ids
        tokens = (0 if prompts is None else len(prompts.values)) + len(responses.values)
        start = time.monotonic()
        scores = engine.score(trajectories, lambda n: say({"event": "tokens", "tokens": n}))
        took = {TOKENS: tokens, SECONDS: round(time.monotonic() - start, 6)}
        _check_size(spec, scores, trajectories)
        table = score_table(spec.name, scores, responses.offsets)
        # Asked anew: batches may have become smaller on the way.
        write_part(folder / part["part"], table, {**about, **engine.provenance(), **took})
        say({"event": "part"})


def _check_weights(spec: PolicySpec, expected: str | None, about: dict[str, Any]) -> None:
    """Refuse a checkpoint that is not the one that the run was planned with."""
    own = about.get("weights_fingerprint")
    if expected is not None and own is not None and own != expected:
        raise RcdiagError(
            f"policy `{spec.name}`: on {about['host']} {spec.model} has other weights "
            f"(fingerprint {own}) than where the run was started ({expected})",
            hint="copy the same checkpoint to all nodes, or put it on a path that they share; if "
            "it was written to meanwhile, start again",
        )


def _check_size(spec: PolicySpec, scores: Scores, rows: Trajectories) -> None:
    """Refuse columns that have not one value for each response token, whatever engine made them."""
    tokens = len(rows.response_ids.values)
    columns = {name: getattr(scores, name) for name in SCORES}
    sizes = {name: len(values) for name, values in columns.items() if values is not None}
    for name, size in sizes.items():
        if size != tokens:
            first, last = rows.row[0], rows.row[-1]
            raise RcdiagError(
                f"policy `{spec.name}`: {spec.backend} returned {size} values of {name} for the "
                f"{tokens} response tokens of rows {first} to {last}",
                hint=f"an error of backend `{spec.backend}`: wanted is one value for each token",
            )


def _incoming(stream: IO[bytes]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Return the parts that the parent sends, read from here on.

    This process ends when the parent ends, even by kill -9 and in the middle of a part: the pipe to
    our stdin closes then.
    """
    waiting: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()

    def read() -> None:
        while line := stream.readline():
            part = json.loads(line)
            waiting.put((part, stream.read(part["bytes"])))
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return iter(waiting.get, None)


def _take_over_stdout(log: str) -> IO[str]:
    """Open a stream to the parent on the old stdout; stdout and stderr go to the log from here."""
    parent = os.fdopen(os.dup(1), "w", buffering=1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    return parent


def main() -> None:
    """Run the job on stdin to its end, then leave without cleaning up."""
    job = json.loads(sys.stdin.buffer.readline())
    # Ctrl-C reaches all processes of a terminal: the parent decides, and closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = _take_over_stdout(job["log"])

    def say(message: dict[str, Any]) -> None:
        parent.write(json.dumps(message) + "\n")

    parts = _incoming(sys.stdin.buffer)
    try:
        run(job, parts, say)
    except RcdiagError as error:
        say({"event": "error", "message": error.message, "hint": error.hint})
    except BaseException as error:
        # The first lines of an engine's error: pydantic gives the reason in its second line.
        lines = [line.strip() for line in (str(error) or repr(error)).splitlines() if line.strip()]
        message = f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]
        say({"event": "crash", "message": message})
        traceback.print_exc()
    parent.flush()
    sys.stderr.flush()
    # Engines leave threads and destructors behind that can hang at exit; all parts are on disk.
    os._exit(1)


if __name__ == "__main__":
    main()
