"""Long work shows its progress on stderr: sentences, and a bar for each scored policy."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rcdiag.usecases.progress import Progress as Listener

if TYPE_CHECKING:
    from cli.terminal.screen import Screen


class Bars(Listener):
    """Bars with scored tokens, tokens per second and time left; none off a terminal."""

    def __init__(self, screen: Screen) -> None:
        self.written: list[Path] = []
        self._say = screen.say
        self._tasks: dict[str, tuple[TaskID, float, int]] = {}  # policy -> task, start, tokens then
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=screen.err,
            transient=True,
            disable=screen.quiet or not screen.err.is_terminal,
        )

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._say(text)

    def wrote(self, path: Path) -> None:
        self.written.append(path)

    def tokens(self, policy: str, scored: int, total: int) -> None:
        if policy not in self._tasks:
            self._bars.start()
            task = self._bars.add_task(policy, total=total, completed=scored, speed="starting")
            self._tasks[policy] = (task, time.monotonic(), scored)
            return
        task, start, first = self._tasks[policy]
        speed = (scored - first) / max(time.monotonic() - start, 1e-9)
        self._bars.update(task, completed=scored, speed=f"{speed:,.0f} tokens/s")
