"""map_in_processes: the parts of a pass, done in parallel by this and worker processes."""

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
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic

from rcdiag.errors import RcdiagError, setting
from rcdiag.runners.runner import Made, Part

if TYPE_CHECKING:
    from concurrent.futures import Executor

# Parts per process that wait or run: enough that no process is idle while results are merged, few
# enough that waiting results use little memory.
AHEAD = 2
# Each process has one core, so libraries must not start threads of their own. `cli/process.py`
# explains the settings of glibc's malloc.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_ARENA_MAX": "1",
}

_function: Callable[[Any], Any] | None = None  # in a worker: the function to call for every part


def map_in_processes(
    function: Callable[[Part], Made], parts: Iterable[Part], workers: int
) -> Generator[Made]:
    """Call a function for every part in `workers` processes, and yield the results in order.

    This process is one of them: it does parts while it would have to wait for the next result. An
    error in a worker is raised here unchanged. Closing the iterator early, as on Ctrl-C, kills the
    workers. They also end if this process is gone.

    Raises:
        RcdiagError: a worker was killed, in most cases because the system ran out of memory.
    """
    # Not `concurrent.futures`: its workers import the user's main module again. A script without
    # `if __name__ == "__main__"` would start itself in each of them.
    from multiprocessing import resource_tracker

    from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

    with _quiet_tracker():
        executor = ProcessPoolExecutor(
            workers - 1, initializer=_start, initargs=(function, os.getpid()), env=ENVIRONMENT
        )
        resource_tracker.ensure_running()  # it unblocks interrupts when it starts
    finished = False
    shared = SharedParts(parts, function, executor, workers)
    try:
        with _interrupts_held():  # the first calls start the workers
            shared.give()
        while shared.due:
            while not shared.due[0].done() and shared.take():
                pass
            yield shared.due.popleft().result()
            shared.give()
        finished = True
    except TerminatedWorkerError as error:
        raise RcdiagError(
            "a worker process was killed, in most cases because the system ran out of memory "
            f"({workers} workers)",
            hint=f"fewer workers take less memory: {setting('workers', 1)}; or draw whole prompt "
            f"groups: {setting('rows', 'N')}",
        ) from error
    finally:
        shared.stop()
        # Workers that have finished end by themselves, while this process goes on.
        # Without psutil and `pgrep`, loky warns about children of workers, which there are none of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executor.shutdown(wait=not finished, kill_workers=not finished)


class SharedParts(Generic[Part, Made]):
    """The parts of a pass; each process takes the next one when it has done the one before."""

    def __init__(
        self,
        parts: Iterable[Part],
        function: Callable[[Part], Made],
        executor: Executor,
        workers: int,
    ) -> None:
        self.due: deque[Future[Made]] = deque()  # of the parts that were taken, in their order
        self._parts, self._function, self._executor = iter(parts), function, executor
        self._most = AHEAD * workers
        self._free = workers - 1  # worker processes that have nothing to do
        # Held while a part is taken: a thread of the executor gives a worker its next part.
        self._lock = threading.RLock()

    def give(self) -> None:
        """Give the next parts to the workers that are free."""
        with self._lock:
            while self._free and (part := self._next()) is not None:
                self._free -= 1
                future = self._executor.submit(_call, part)
                self.due.append(future)
                future.add_done_callback(self._worker_is_free)

    def take(self) -> bool:
        """Do the next part in this process; return False if there is none to do now."""
        with self._lock:
            if (part := self._next()) is None:
                return False
            own: Future[Made] = Future()
            self.due.append(own)
        try:
            own.set_result(self._function(part))
        except Exception as error:  # raised when the part's turn comes, like that of a worker
            own.set_exception(error)
        return True

    def stop(self) -> None:
        """Leave the remaining parts undone."""
        with self._lock:
            self._parts = iter(())

    def _next(self) -> Part | None:
        return next(self._parts, None) if len(self.due) < self._most else None

    def _worker_is_free(self, done: Future[Made]) -> None:
        if not done.cancelled() and done.exception() is None:
            with self._lock:
                self._free += 1
                self.give()


@contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Start the process that cleans up semaphores, without its warnings.

    It would warn about semaphores left behind by an interrupt, after the command's last message.
    """
    sys.warnoptions.append("ignore:resource_tracker")  # the new process has the same options
    try:
        yield
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT; processes that start meanwhile inherit the block for good.

    A terminal sends Ctrl-C to the workers too, and one that is still importing would print a
    traceback. The parent process ends them instead.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(function: Callable[[Any], Any], parent: int) -> None:
    """Prepare a worker, which ends with its parent process."""
    global _function
    _function = function
    gc.freeze()  # imported objects stay, so the garbage collector need not visit them
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone; a killed parent cannot end it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _call(part: Any) -> Any:
    assert _function is not None
    return _function(part)
