"""Writing to a reader that may leave before the end."""

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

# Values of TERM, by how they begin, of terminals that show no hyperlinks, or their bytes.
WITHOUT_LINKS = ("dumb", "linux", "vt", "unknown", "cons", "sun", "xterm-mono")


class TerminalConsole(Console):
    """A console for text of files, which may hold anything.

    What looks like markup and is none stands as it is; control characters are made visible, and
    links are left out, but for those to our own outputs. A reader that has seen enough (`| head`)
    is no failure, nor a finding.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._outputs: set[str] = set()

    def link_to(self, path: Path) -> Style:
        """Return the style that makes a text a link to a file that rcdiag has written.

        It is plain where the terminal does not know links; what is no terminal gets none anyhow.
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
