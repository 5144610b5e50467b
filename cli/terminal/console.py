"""A console that prints text from files safely and tolerates a pipe that is closed early."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.errors import MarkupError
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from cli.terminal.visible import visible

# Prefixes of TERM for terminals without hyperlinks, some of which print their escape codes.
WITHOUT_LINKS = ("dumb", "linux", "vt", "unknown", "cons", "sun", "xterm-mono")


class TerminalConsole(Console):
    """A console for text from files, which may contain anything.

    Text that only looks like markup is shown unchanged, control characters are made visible, and
    links are dropped except those to our own outputs. A closed pipe (`| head`) is not an error.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._outputs: set[str] = set()

    def link_to(self, path: Path) -> Style:
        """Return the style that makes a text a link to a file that rcdiag has written.

        It is empty for a terminal without links; rich prints none to files and pipes.
        """
        if os.environ.get("TERM", "").startswith(WITHOUT_LINKS):
            return Style()
        url = path.resolve().as_uri()
        self._outputs.add(url)
        return Style(link=url)

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
            if style is not None and style.link and style.link not in self._outputs:
                style = style.update_link(None)
            yield Segment(text, style, control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output(self.file)


def discard_output(stream: IO[str]) -> None:
    """Redirect a stream to /dev/null after its reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_out(text: str) -> None:
    """Write a text to stdout unchanged; a closed pipe is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output(sys.stdout)
