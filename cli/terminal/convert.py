"""A conversion is drawn on the terminal: what is there, what was changed, what is lacking."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rcdiag.results import ConvertResult

SHOWN = 6  # changes without -v


def draw_convert(out: Console, result: ConvertResult, verbose: bool) -> None:
    """Draw a conversion in under 20 lines; with -v every change of it."""
    files = f"{result.files:,} file{'s' if result.files > 1 else ''}"
    out.print(
        f"[bold]{escape(Path(result.output).name)}[/]  {result.rows:,} rows, "
        f"{result.tokens:,} response tokens, from {files} of {escape(result.format)}"
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
    for number, (name, way) in enumerate(result.lacking.items()):
        lines.add_row("" if number else "lacking", escape(f"{name}: {way}"))
    out.print(lines)


def changes(result: ConvertResult, verbose: bool) -> list[str]:
    """Write the changes as lines; without -v the first few."""
    texts = [text + (f" ({rows:,} rows)" if rows else "") for text, rows in result.changes.items()]
    hidden = len(texts) - SHOWN
    if verbose or hidden <= 1:
        return texts
    return [*texts[:SHOWN], f"and {hidden} more: -v"]
