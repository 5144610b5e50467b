"""Functions for worker processes, which import nothing else of the tests."""

from __future__ import annotations

import os
import signal
import time

from rcdiag.errors import RcdiagError


def kill_worker(main: int, number: int) -> int:
    if os.getpid() != main and number >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def threads_of_blas(number: int) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get("OPENBLAS_NUM_THREADS")


def wait_in_worker(main: int, number: int) -> int:
    if os.getpid() != main:
        time.sleep(60.0 * number)
    return os.getpid()


def place_of(main: int, number: int) -> tuple[int, bool]:
    """Do a part, slowly in a worker; return its number, and whether the main process did it."""
    time.sleep(0.0 if os.getpid() == main else 0.2)
    return number, os.getpid() == main


def fail_in_main(main: int, number: int) -> int:
    if os.getpid() == main or number == 0:
        raise RcdiagError(f"part {number}")
    return number
