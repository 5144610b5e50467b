"""What the terminal shows: results on stdout, conversation and progress on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cli.options import FailOn
from cli.terminal.draw import draw
from rcdiag.results import SEVERITIES, Result, worst_severity


class _Console(Console):
    """A reader that has seen enough (`| head`) is no failure, nor a finding."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop(self.file)


def drop(stream: IO[str]) -> None:
    """Let what is still to come go nowhere: the reader at the other end has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Screen:
    """stdout for the result, stderr for all else; `json` makes stdout one document."""

    def __init__(self, *, quiet: bool, verbose: bool, json: bool) -> None:
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.out = _Console(highlight=False)
        self.err = _Console(stderr=True, highlight=False)

    def aside(self) -> Screen:
        """The same with the result on stderr too: stdout is for something else."""
        other = Screen(quiet=self.quiet, verbose=self.verbose, json=False)
        other.out = other.err
        return other

    def say(self, text: str) -> None:
        if not self.quiet:
            self.err.print(escape(text), soft_wrap=True)

    @contextlib.contextmanager
    def tokens(self) -> Iterator[Callable[[str, int, int], None]]:
        """A bar per policy: tokens done, tokens per second, time left; silent off a terminal."""
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self.err,
            transient=True,
            disable=self.quiet or not self.err.is_terminal,
        )
        tasks: dict[str, tuple] = {}

        def on_tokens(policy: str, done: int, total: int) -> None:
            if policy not in tasks:
                task = bars.add_task(policy, total=total, completed=done, speed="starting")
                tasks[policy] = (task, time.monotonic(), done)
                return
            task, start, first = tasks[policy]
            speed = (done - first) / max(time.monotonic() - start, 1e-9)
            bars.update(task, completed=done, speed=f"{speed:,.0f} tokens/s")

        with bars:
            yield on_tokens

    def show(self, found: Result, to_json: Callable[[Result], str]) -> None:
        if self.json:
            try:
                sys.stdout.write(to_json(found))
                sys.stdout.flush()
            except BrokenPipeError:
                drop(sys.stdout)
        elif not self.quiet:
            draw(self.out, found, verbose=self.verbose)

    def exit(self, found: Result, fail_on: FailOn) -> None:
        """Exit 1 when there are findings at or above the level."""
        worst = worst_severity(found.findings)
        if fail_on is FailOn.never or worst is None:
            return
        if SEVERITIES.index(worst) >= SEVERITIES.index(fail_on.value):
            raise typer.Exit(1)
