"""The process that an engine runs in: `python -m rcdiag.engines.worker JOB.json`.

Speaks JSON lines on what was stdout; everything the engine prints goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.files import write_text
from rcdiag.table.decode import columns_needed, decode
from rcdiag.table.parts import score_table, write_part
from rcdiag.table.stream import read_chunks, whole
from rcdiag.table.table import open_table


def run(job: dict[str, Any], say: Any) -> None:
    """Score the job's ranges of rows, one part each; a part appears whole or not at all."""
    spec = PolicySpec(**job["spec"])
    engine = spec.load(job["max_length"])
    folder = Path(job["folder"])
    provenance = {**spec.to_dict(), **engine.provenance()}
    write_text(folder / "provenance.json", json.dumps(provenance))
    say({"event": "ready"})
    dump = open_table(job["source"], job["renames"], "parquet", given=job["given"])
    names = columns_needed(dump.schema.names, (), prompts=True)
    ranges = [tuple(pair) for pair in job["ranges"].values()]
    chunks = read_chunks(dump, ranges, names)
    for part, batches in zip(job["ranges"], chunks, strict=True):
        trajectories = decode(whole(batches), prompts=True)
        scores = engine.score(trajectories, lambda n: say({"event": "tokens", "tokens": n}))
        table = score_table(spec.name, scores, trajectories.response_ids.offsets)
        write_part(folder / part, table, {})


def _take_over_stdout(log: str) -> IO[str]:
    """Open a stream to the parent on the old stdout; stdout and stderr go to the log from here."""
    parent = os.fdopen(os.dup(1), "w", buffering=1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    return parent


def _die_with_parent() -> None:
    """End this process when the parent ends, even by kill -9: the pipe to our stdin closes then."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    parent = _take_over_stdout(job["log"])
    _die_with_parent()

    def say(message: dict[str, Any]) -> None:
        parent.write(json.dumps(message) + "\n")

    code = 1
    try:
        run(job, say)
        say({"event": "done"})
        code = 0
    except RcdiagError as error:
        say({"event": "error", "message": error.message, "hint": error.hint})
    except BaseException as error:
        say({"event": "crash", "message": _in_short(error)})
        traceback.print_exc()
    parent.flush()
    sys.stderr.flush()
    # Engines leave threads and destructors behind that can hang at exit; all parts are on disk.
    os._exit(code)


def _in_short(error: BaseException) -> str:
    """The first lines of an engine's complaint: pydantic says the reason in its second."""
    lines = [line.strip() for line in (str(error) or repr(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]


if __name__ == "__main__":
    main()
