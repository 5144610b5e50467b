"""Writing to a reader that may leave before the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.errors import MarkupError
from rich.segment import Segment
from rich.text import Text

from cli.terminal.visible import visible


class TerminalConsole(Console):
    """A console for text of files, which may hold anything.

    What looks like markup and is none stands as it is; control characters are made visible, and
    links are left out. A reader that has seen enough (`| head`) is no failure, nor a finding.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return super().render_str(text, **{**options, "markup": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            if control is None:
                text = visible(text)
            if style is not None and style.link:
                style = style.update_link(None)
            yield Segment(text, style, control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop(self.file)


def drop(stream: IO[str]) -> None:
    """Let what is still to come go nowhere: the reader at the other end has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_out(text: str) -> None:
    """Write to stdout as it is, whether or not somebody reads to the end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
