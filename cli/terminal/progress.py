"""Show progress on stderr: sentences, and a bar or lines for each scored policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from rcdiag.formats import duration
from rcdiag.progress import Progress as Listener

# Seconds between progress lines if stderr is not a terminal, and before the first.
SECONDS_PER_LINE = 30.0
SECONDS_BEFORE_CONVERSION = 0.5  # short conversions show nothing


class Bars(Listener):
    """Bars with scored tokens, tokens per second and time left; lines if stderr is no terminal."""

    def __init__(self, console: Console, say: Callable[[str], None], *, quiet: bool) -> None:
        """`console` writes to stderr; `say` prints a sentence there unless `quiet`."""
        self.written: list[Path] = []
        self._say = say
        self._lines = not console.is_terminal
        self._last_line = time.monotonic()
        self._console = console
        self._quiet = quiet
        self._conversion: float | None = None  # start time
        self._status: Status | None = None
        self._tasks: dict[str, tuple[TaskID, float, int]] = {}  # policy -> task, time, tokens
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_conversion()
        self._bars.stop()

    def _end_conversion(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, text: str) -> None:
        self._say(text)

    def wrote(self, path: Path) -> None:
        self.written.append(path)

    def converted(self, file: str, number: int, files: int, rows: int, tokens: int) -> None:
        """Show the progress of a conversion, whose total is unknown until its end."""
        now = time.monotonic()
        if self._conversion is None:
            self._conversion = now
        speed = tokens / max(now - self._conversion, 1e-9)
        text = conversion_line(file, number, files, rows, tokens)
        if (
            not self._lines
            and not self._quiet
            and now - self._conversion >= SECONDS_BEFORE_CONVERSION
        ):
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(f"{escape(text)}, {speed:,.0f} tokens/s")
        elif self._lines and now - self._last_line >= SECONDS_PER_LINE:
            self._last_line = now
            self._say(text)

    def tokens(self, policy: str, scored: int, total: int) -> None:
        if policy not in self._tasks:
            self._end_conversion()
            self._bars.start()
            task = self._bars.add_task(policy, total=total, completed=scored, speed="starting")
            self._tasks[policy] = (task, time.monotonic(), scored)
            return
        task, start, first = self._tasks[policy]
        now = time.monotonic()
        speed = (scored - first) / max(now - start, 1e-9)
        self._bars.update(task, completed=scored, speed=f"{speed:,.0f} tokens/s")
        if self._lines and scored < total and now - self._last_line >= SECONDS_PER_LINE:
            self._last_line = now
            self._say(progress_line(policy, scored, total, speed))


def conversion_line(file: str, number: int, files: int, rows: int, tokens: int) -> str:
    """Describe the progress of a conversion."""
    place = f"file {number:,} of {files:,}, " if files > 1 else ""
    return f"reading {file}: {place}{rows:,} rows, {tokens:,} tokens"


def progress_line(policy: str, scored: int, total: int, speed: float) -> str:
    """Describe the progress of scoring a policy; `speed` is in tokens per second."""
    line = f"scoring {policy}: {scored:,} of {total:,} tokens, {scored / total:.0%}"
    return f"{line}, about {duration((total - scored) / speed)} left" if speed > 0 else line
