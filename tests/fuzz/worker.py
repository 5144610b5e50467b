"""A process that runs commands of rcdiag, one job per line of its stdin.

A job is {"path", "command", "compared"}; the answer is {"outcome", "what"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

# A wrong size in a damaged file must not exhaust the machine's memory.
MEMORY = 6 << 30
CLEAN, REFUSED, BAD = "clean result", "clean refusal", "bad"


def run(command: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; returns exit code, stdout and stderr."""
    from cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    sys.argv = ["rcdiag", *command]
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return int(code or 0), texts[0], texts[1]


def judged(code: int, out: str, err: str, job: dict[str, Any]) -> tuple[str, str]:
    """Classify the outcome of a job, and describe the problem if it is bad."""
    if "Traceback" in err or "traceback" in err.lower().split("\n")[0]:
        return BAD, "traceback: " + err.strip().splitlines()[-1]
    controls = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - set("\t\n")
    if controls & set(out + err):
        return BAD, "control characters on the screen"
    if code == 2:
        lines = [line for line in err.splitlines() if line.strip()]
        # Typer's own errors about options, which a --config file may cause, are in a box.
        if "Usage:" in err:
            return REFUSED, ""
        if not any(line.startswith("error: ") for line in lines) or "hint: " not in err:
            return BAD, f"a refusal without error and hint: {err.strip()[:300]}"
        return REFUSED, ""
    if code != 0:
        return BAD, f"exit code {code}: {err.strip()[:300]}"
    if job["compared"]:
        from tests.fuzz.oracle import difference

        wrong = difference(Path(job["path"]), json.loads(out))
        if wrong is not None:
            return BAD, f"another number: {wrong}"
    return CLEAN, ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error", RuntimeWarning)
    answers = sys.stdout
    for line in sys.stdin:
        job = json.loads(line)
        try:
            outcome, what = judged(*run(job["command"]), job)
        except Exception as error:
            outcome, what = BAD, f"{type(error).__name__}: {error}"
        answers.write(json.dumps({"outcome": outcome, "what": what}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
