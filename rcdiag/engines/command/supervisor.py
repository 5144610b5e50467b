"""Run a program, and end it with all its descendants once this process's stdin closes.

    python -I -S supervisor.py PROGRAM ARGUMENT...

The engine's process may end at any moment, even by kill -9, which closes its end of the pipe to our
stdin. A program may consist of many processes, and torchrun gives each worker a session. So this
process adopts orphans, finds all processes as its descendants, and ends after the last of them. It
does not import rcdiag, so that it starts quickly, and it returns the program's exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphaned descendants become children of this process
PAUSE = 0.05  # seconds between checks
SIGNAL_BASE = 128  # exit code after a signal is this plus its number, as in shells
PATIENCE = 10.0  # seconds after SIGTERM before the program's processes are killed


def main() -> None:
    """Run the program of the command line until it or the engine ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # PYTHONSAFEPATH keeps engines from importing from the current folder, but a user's script may
    # import modules beside it.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    program = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, env=environment, process_group=0
    )
    while program.poll() is None:
        engine_is_gone, _, _ = select.select([sys.stdin], [], [], PAUSE)
        if engine_is_gone:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(program.pid, signal.SIGTERM)
                program.wait(PATIENCE)
            break
    _kill_descendants()
    code = program.wait()
    sys.exit(code if code >= 0 else SIGNAL_BASE - code)


def _kill_descendants() -> None:
    """Kill all processes that the program has left behind."""
    while left := descendants(os.getpid()):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(PAUSE)


def descendants(ancestor: int) -> set[int]:
    """Return all descendants of a process, from the parents in /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                # Fields after the name, which stands in parentheses: state, parent, ...
                parents[int(entry.name)] = int(
                    (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
                )
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {process for process, parent in parents.items() if parent in new} - found
        found |= new
    return found


if __name__ == "__main__":
    main()
