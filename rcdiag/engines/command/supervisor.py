"""Runs a program and ends it, with all that it has started, once this process's stdin closes.

    python -I -S supervisor.py PROGRAM ARGUMENT...

The process of an engine may end at any moment, by kill -9 too; its end of the pipe to our stdin
closes then. A program may consist of many processes (torchrun gives each of its workers a session),
so this one adopts the orphans among them, finds them all as its descendants, and ends when the last
has ended. It imports nothing of rcdiag, so that it starts at once, and exits as the program did.
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

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h: orphans become children of this process
PAUSE = 0.05  # seconds between two looks
OF_SIGNALS = 128  # plus the signal that ended a program is its exit code, as in shells
PATIENCE = 10.0  # seconds in which a program may end its own processes before they are killed


def main() -> None:
    """Run the program of the command line to its end, or to that of the engine."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Engines import nothing from the current folder; a script of the user's imports what lies
    # beside it.
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
    sys.exit(code if code >= 0 else OF_SIGNALS - code)


def _kill_descendants() -> None:
    """Kill what the program has started and left, until nothing of it runs."""
    while left := descendants(os.getpid()):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(PAUSE)


def descendants(ancestor: int) -> set[int]:
    """Return the processes that stem from one, by their parents in /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # After the name, which stands in brackets: state, parent, ...
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
