"""The terminal shows results on stdout, conversation and progress on stderr."""

from __future__ import annotations

import os
import sys
from typing import IO

import typer
from rich.console import Console
from rich.markup import escape

from cli.options import FailOn
from cli.terminal.draw import draw
from cli.terminal.progress import Bars
from rcdiag.results import SEVERITIES, Result, to_json, worst_severity


class _Console(Console):
    """A console for which a reader that has seen enough (`| head`) is no failure."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop(self.file)


def drop(stream: IO[str]) -> None:
    """Discard what is still to come: the reader at the other end has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_out(text: str) -> None:
    """Write to stdout as it is, whether or not somebody reads to the end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)


class Screen:
    """A screen with the result on stdout, all else on stderr; `json` makes stdout one document."""

    def __init__(self, *, quiet: bool, verbose: bool, json: bool) -> None:
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.out = _Console(highlight=False)
        self.err = _Console(stderr=True, highlight=False)

    def aside(self) -> Screen:
        """Return a screen with the result on stderr too: stdout is for something else."""
        other = Screen(quiet=self.quiet, verbose=self.verbose, json=False)
        other.out = other.err
        return other

    def say(self, text: str) -> None:
        if not self.quiet:
            self.err.print(escape(text), soft_wrap=True)

    def progress(self) -> Bars:
        """Return a listener for the library, a context: its bars go when the block ends."""
        return Bars(self)

    def show(self, result: Result) -> None:
        """Draw the result, or with `json` print its document alone."""
        if self.json:
            write_out(to_json(result))
        elif not self.quiet:
            draw(self.out, result, verbose=self.verbose)

    def exit(self, result: Result, fail_on: FailOn) -> None:
        """Exit 1 when there are findings at or above the level."""
        worst = worst_severity(result.findings)
        if fail_on is FailOn.never or worst is None:
            return
        if SEVERITIES.index(worst) >= SEVERITIES.index(fail_on.value):
            raise typer.Exit(1)
