"""Draw a conversion on the terminal: what the table has, what was changed, what is missing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cli.terminal.headline import draw_lines, labelled
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
    by_way: dict[str, list[str]] = {}
    for name, way in result.lacking.items():
        by_way.setdefault(way, []).append(name)
    given = ", ".join(f"{name}={value}" for name, value in result.given.items())
    lines = [
        ("policies", ", ".join(result.policies) or "none"),
        ("columns", ", ".join(result.columns)),
        *([("given", given)] if given else []),
        *labelled("changed", changes(result, verbose)),
        *labelled("missing", (f"{', '.join(names)}: {way}" for way, names in by_way.items())),
    ]
    draw_lines(out, lines)


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
