"""Draw the answer of `rcdiag explain`: an entry, or a line for each name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.terminal.console import TerminalConsole
from rcdiag.entry import Entry
from rcdiag.glossary import headings

ROWS = (
    *("what", "also_called", "formula", "direction", "units", "healthy"),
    *("parts", "generations", "example", "links", "see"),
)
# Kind of an entry -> heading of its generations, if not "trainers".
GENERATIONS = {"trainer": "has", "backend": "options", "cause": "fix in"}
WIDTH = 110


def draw_explanation(answer: Entry | dict[str, dict[str, str]]) -> None:
    """Draw an entry, or all names by kind."""
    out = TerminalConsole(highlight=False)
    if not isinstance(answer, Entry):
        _draw_names(out, answer)
        return
    grid = _grid({"no_wrap": True, "style": "dim"}, {"overflow": "fold"})
    for heading, value in _rows(answer):
        grid.add_row(heading, _cell(value))
    out.print(Text.assemble((answer.name, "bold"), (f"  {answer.kind}", "dim")))
    out.print(grid, width=min(out.width, WIDTH))


def _grid(*columns: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(**column)
    return grid


def _draw_names(out: TerminalConsole, lines_by_kind: dict[str, dict[str, str]]) -> None:
    """Draw a line for each name into a pipe; on a terminal only a line for each kind, since there
    are more than a thousand names.
    """
    if out.is_terminal:
        for kind, lines in lines_by_kind.items():
            text = Text.assemble(f"{len(lines):5,}  ", (headings()[kind], "bold"))
            text.append(f"  {', '.join(lines)}", "dim")
            out.print(text, no_wrap=True, overflow="ellipsis")
        out.print()
        out.print("rcdiag explain NAME explains one of them; rcdiag explain | less lists all.")
        return
    for kind, lines in lines_by_kind.items():
        out.print(Text(headings()[kind], "bold"))
        width = max(map(len, lines))
        for name, line in lines.items():
            out.print(Text.assemble(f"  {name:{width}}  ", (line, "dim")), soft_wrap=True)
        out.print()
    out.print("rcdiag explain NAME explains one of them.")


def _rows(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield heading and content of each part of the entry that is not empty."""
    for row in ROWS:
        value = getattr(entry, row)
        if row == "parts":
            yield from value.items()
        elif row == "links" and value:
            yield row, "\n".join(value.values())  # a title is what stands behind its address
        elif row == "also_called" and value:
            yield "also called", "\n".join(f"{name}: {where}" for name, where in value.items())
        elif row == "generations" and value:
            yield GENERATIONS.get(entry.kind, "trainers"), value
        elif value:
            yield row, value


def _cell(value: Any) -> RenderableType:
    """Return a text, a line for each trainer, or names separated by commas."""
    if isinstance(value, dict):
        grid = _grid({"style": "cyan", "max_width": 26}, {"overflow": "fold"})
        for trainers, text in value.items():
            grid.add_row(Text(trainers), Text(text))
        return grid
    return Text(value if isinstance(value, str) else ", ".join(value))
