"""Draw a conversion on the terminal: what the table has, what was changed, what is missing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rcdiag.formats import plural
from rcdiag.results import ConvertResult

SHOWN = 6  # changes shown without -v


def draw_convert(out: Console, result: ConvertResult, verbose: bool) -> None:
    """Draw a conversion in under 20 lines; with -v all changes."""
    out.print(
        f"[bold]{escape(Path(result.output).name)}[/]  {plural(result.rows, 'row')}, "
        f"{plural(result.tokens, 'response token')}, from {plural(result.files, 'file')} "
        f"({escape(result.format)})"
    )
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column()
    lines.add_row("policies", escape(", ".join(result.policies) or "none"))
    lines.add_row("columns", escape(", ".join(result.columns)))
    if result.given:
        given = ", ".join(f"{name}={value}" for name, value in result.given.items())
        lines.add_row("given", escape(given))
    for number, text in enumerate(changes(result, verbose)):
        lines.add_row("" if number else "changed", escape(text))
    by_way: dict[str, list[str]] = {}
    for name, way in result.lacking.items():
        by_way.setdefault(way, []).append(name)
    for number, (way, names) in enumerate(by_way.items()):
        lines.add_row("" if number else "missing", escape(f"{', '.join(names)}: {way}"))
    out.print(lines)


def changes(result: ConvertResult, verbose: bool) -> list[str]:
    """Return the changes as lines; without -v the first few."""
    texts = [
        text + (f" ({plural(rows, 'row')})" if rows else "")
        for text, rows in result.changes.items()
    ]
    hidden = len(texts) - SHOWN
    if verbose or hidden <= 1:
        return texts
    return [*texts[:SHOWN], f"and {plural(hidden, 'more change')}: -v"]
