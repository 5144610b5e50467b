"""`rcdiag explain`: what a name in a result means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import rcdiag
from cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType
    from rich.table import Table

    from rcdiag.entry import Entry

EPILOG = "Example: `rcdiag explain rollout_is_eff_sample_size`"

ROWS = (
    *("what", "formula", "direction", "units", "healthy"),
    *("parts", "generations", "example", "links", "see"),
)
WIDTH = 110


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A metric, setting, finding, cause, ...; all names without it"
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a name: formula, direction, healthy range, its name in each trainer."""
    answer = rcdiag.explain() if name is None else rcdiag.explain(name)
    if json:
        from cli.terminal.console import write_out
        from rcdiag.api.explain import document

        write_out(document(answer))
    elif isinstance(answer, dict):
        _draw_names(answer)
    else:
        _draw_entry(answer)


def _console() -> Console:
    from cli.terminal.console import TerminalConsole

    return TerminalConsole(highlight=False)


def _grid(*columns: dict[str, Any]) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(**column)
    return grid


def _draw_names(lines_by_kind: dict[str, dict[str, str]]) -> None:
    """Draw a line for each name: cut at the edge of a terminal, whole in a pipe."""
    from rich.text import Text

    from rcdiag.glossary import headings

    out = _console()
    for kind, lines in lines_by_kind.items():
        out.print(Text(headings()[kind], "bold"))
        width = max(map(len, lines))
        for name, line in lines.items():
            text = Text.assemble(f"  {name:{width}}  ", (line, "dim"))
            if out.is_terminal:
                out.print(text, no_wrap=True, overflow="ellipsis")
            else:
                out.print(text, soft_wrap=True)
        out.print()
    out.print("rcdiag explain NAME says all about one of them.")


def _draw_entry(entry: Entry) -> None:
    from rich.text import Text

    grid = _grid({"no_wrap": True, "style": "dim"}, {"overflow": "fold"})
    for heading, value in _rows(entry):
        grid.add_row(heading, _cell(value))
    out = _console()
    out.print(Text.assemble((entry.name, "bold"), (f"  {entry.kind}", "dim")))
    out.print(grid, width=min(out.width, WIDTH))


def _rows(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield heading and content of every row that the entry fills."""
    for row in ROWS:
        value = getattr(entry, row)
        if row == "parts":
            yield from value.items()
        elif row == "links" and value:
            yield row, "\n".join(f"{text}\n{url}" for text, url in value.items())
        elif value:
            yield _label(entry, row), value


def _label(entry: Entry, row: str) -> str:
    if row != "generations":
        return row
    return {"trainer": "has", "backend": "options", "cause": "fix in"}.get(entry.kind, "trainers")


def _cell(value: Any) -> RenderableType:
    """Write a text, a line per trainer, or names one after the other."""
    from rich.text import Text

    if isinstance(value, dict):
        grid = _grid({"style": "cyan", "max_width": 26}, {"overflow": "fold"})
        for trainers, text in value.items():
            grid.add_row(Text(trainers), Text(text))
        return grid
    return Text(value if isinstance(value, str) else ", ".join(value))
