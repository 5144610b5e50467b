"""Parts of a pass are done side by side by processes on this machine."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rcdiag.errors import RcdiagError, setting
from rcdiag.runners.runner import Made, Part

if TYPE_CHECKING:
    from concurrent.futures import Future

# Parts for each process that wait or run: enough that none is idle while results are merged, few
# enough that the results that wait are bounded in memory.
AHEAD = 2
# Each process has one core: libraries that multiply matrices start no threads of their own. The
# settings of glibc's malloc are those of `cli/process.py`, which says why.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_ARENA_MAX": "1",
}

_function: Callable[[Any], Any] | None = None  # of a worker: what it does with every part


def map_in_processes(
    function: Callable[[Part], Made], parts: Iterable[Part], workers: int
) -> Generator[Made]:
    """Call a function with every part in `workers` processes, and yield the results in order.

    An error in a worker is raised here as it is. The workers end with the iterator, killed if it is
    closed before its end, as by Ctrl-C; they also end when this process is gone.

    Raises:
        RcdiagError: a worker was killed, mostly by a system that is out of memory.
    """
    # Not `concurrent.futures`: its workers import the user's main module again, so that a script
    # without `if __name__ == "__main__"` would start itself in each of them.
    from multiprocessing import resource_tracker

    from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

    with _quiet_tracker():
        executor = ProcessPoolExecutor(
            workers, initializer=_start, initargs=(function, os.getpid()), env=ENVIRONMENT
        )
        resource_tracker.ensure_running()  # which lets interrupts through when it starts
    finished = False
    due: deque[Future[Made]] = deque()
    try:
        for part in parts:
            with _interrupts_held():  # the first calls start the workers
                due.append(executor.submit(_call, part))
            if len(due) >= AHEAD * workers:
                yield due.popleft().result()
        while due:
            yield due.popleft().result()
        finished = True
    except TerminatedWorkerError as error:
        raise RcdiagError(
            "a worker process was killed, most often by the system where memory runs out "
            f"({workers} workers)",
            hint=f"fewer take less memory: {setting('workers', 1)}; or draw whole prompt groups: "
            f"{setting('rows', 'N')}",
        ) from error
    finally:
        # Without psutil and `pgrep` loky warns that children of workers stay: they have none.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executor.shutdown(wait=True, kill_workers=not finished)


@contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Start the process that tidies up semaphores without its warnings.

    It warns of those that an interrupt left behind, after the command has said that it ended.
    """
    sys.warnoptions.append("ignore:resource_tracker")  # the new process has the same options
    try:
        yield
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold SIGINT back, as processes that start meanwhile do for good.

    A terminal sends Ctrl-C to them too, and one that is still importing would print a traceback;
    the first process ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(function: Callable[[Any], Any], parent: int) -> None:
    """Prepare a worker, which does not go on without the first process."""
    global _function
    _function = function
    gc.freeze()  # what is imported stays: collecting does not look through it again and again
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, which a killed one cannot ask for."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _call(part: Any) -> Any:
    assert _function is not None
    return _function(part)
