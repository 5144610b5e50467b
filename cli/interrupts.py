"""SIGINT and SIGTERM raise KeyboardInterrupt in a command, whenever they arrive."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# Seconds. Python drops exceptions raised in weak-reference callbacks, which run during imports; an
# interrupt that was dropped there is raised again after this time.
AGAIN = 0.01


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at a SIGTERM, and again if Python dropped one."""
    terminated = signal.getsignal(signal.SIGTERM)
    alarmed = signal.getsignal(signal.SIGALRM)
    reported = sys.unraisablehook

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, terminated)  # a second SIGTERM ends the process at once
        raise KeyboardInterrupt

    def alarm(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            reported(dropped)

    try:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = report
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = reported
        signal.signal(signal.SIGALRM, alarmed)
        signal.signal(signal.SIGTERM, terminated)
