"""Draw the comparison of a trainer's log with our numbers, a line for each key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import ScreenColumn, fitted
from cli.terminal.headline import shortened_to
from rcdiag.pages.score.logged import AGREES, LoggedLine, counted_keys, lines_of, sentences
from rcdiag.pages.score.training import moved_in_training
from rcdiag.results import LogComparison, LoggedKey
from rcdiag.results.doc import heading_of


def draw_logged(out: Console, comparison: LogComparison, verbose: bool, rows: int) -> None:
    """Draw at most `rows` keys that differ, each at the step of the largest difference, and why.

    With `verbose`, draw all keys, how unexplained ones are computed, and the names of the others.
    A log that does not fit the table gets a line or two.
    """
    lines = lines_of(comparison)
    differ = [line for line in lines if not line.agrees]
    name = Path(comparison.file).name
    if not (verbose or comparison.fits):
        hardly = f"is hardly the log of this table: {counted_keys(comparison)} (all: -v)"
        out.print(f"[bold]{escape(name)}[/] {escape(hardly)}")
        return
    out.print(f"[bold]{escape(name)}[/]: {escape(counted_keys(comparison))}")
    if shown := lines if verbose else differ[:rows]:
        out.print(_table(out, shown, comparison))
    for reason, sentence in sentences(comparison, None if verbose else 0).items():
        if not (verbose or any(line.reads.startswith(reason) for line in shown)):
            continue
        said = f"{reason}: {sentence}"
        out.print(f"[dim]{escape(said if verbose else shortened_to(said, out.width, 1))}[/]")
    if comparison.step_reason:
        out.print(f"[dim]steps: {escape(comparison.step_reason)}[/]")
    shows = comparison.log_shows
    if shows is not None and (moved := moved_in_training(shows.keys_moved)):
        out.print(escape(shortened_to(moved, out.width, 3 if verbose else 1)))
    if verbose:
        if comparison.preset is not None:
            out.print(f"[dim]preset: {escape(comparison.preset_reason)}[/]")
        for what, names in (
            ("logged, not computed here", comparison.not_ours),
            ("computed, not logged", comparison.not_logged),
        ):
            out.print(f"[dim]{what}: {escape(', '.join(names) or 'none')}[/]")


def _table(out: Console, lines: Sequence[LoggedLine], comparison: LogComparison) -> Table:
    several = len(comparison.log_steps) > 1
    columns = [
        ScreenColumn(heading=heading_of(LoggedKey, "key"), align="left"),
        *([ScreenColumn(heading="step", dispensable=1)] if several else []),
        ScreenColumn(heading=heading_of(LoggedKey, "theirs")),
        ScreenColumn(heading=heading_of(LoggedKey, "ours")),
        ScreenColumn(heading=heading_of(LoggedKey, "explained_by"), align="left"),
    ]
    rows = [
        [
            escape(line.name),
            *([line.step] if several else []),
            line.theirs,
            line.ours,
            f"[dim]{AGREES}[/]" if line.agrees else escape(line.reads),
        ]
        for line in lines
    ]
    return fitted(out, columns, rows, gap=2)
