"""Draw the comparison of a trainer's log with our numbers, a line for each key."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import ScreenColumn, fitted
from cli.terminal.headline import shortened_to
from rcdiag.formats import plural
from rcdiag.pages.score.logged import AGREES, LoggedLine, lines_of, sentences
from rcdiag.pages.score.training import moved_in_training
from rcdiag.results import LogComparison, LoggedKey
from rcdiag.results.doc import heading_of

KEYS = 5  # keys that differ, shown without -v


def draw_logged(out: Console, comparison: LogComparison, verbose: bool) -> None:
    """Draw the keys that differ, each at the step of the largest difference, and why.

    With `verbose`, draw all keys, and how unexplained ones are computed; otherwise the first that
    differ, and a line for each reason. A log that does not fit the table gets a line or two.
    """
    lines = lines_of(comparison)
    agree = sum(line.agrees for line in lines)
    shown = lines if verbose else [line for line in lines if not line.agrees][:KEYS]
    beside = "the mismatch" if comparison.preset is None else f"preset {comparison.preset}"
    counted = f"{agree} of {plural(len(lines), 'key')} agree with {escape(beside)}"
    if not (verbose or comparison.fits):
        hardly = f"is hardly the log of this table: {counted} (all: -v)"
        out.print(f"[bold]{escape(comparison.file)}[/] {hardly}")
        _draw_alone(out, comparison, 2)
        return
    out.print(f"[bold]{escape(comparison.file)}[/]: {counted}")
    if comparison.preset is not None:
        out.print(f"[dim]preset: {escape(comparison.preset_reason)}[/]")
    if shown:
        out.print(_table(out, shown, comparison))
    for name, sentence in sentences(comparison, None if verbose else 0).items():
        said = f"{name}: {sentence}"
        out.print(f"[dim]{escape(said if verbose else shortened_to(said, out.width, 1))}[/]")
    if comparison.step_reason:
        out.print(f"[dim]steps: {escape(comparison.step_reason)}[/]")
    _draw_alone(out, comparison, None if verbose else 2)
    shows = comparison.log_shows
    if shows is not None and (moved := moved_in_training(shows.keys_moved)):
        out.print(escape(shortened_to(moved, out.width, 3 if verbose else 2)))
    others = f"{plural(len(comparison.not_ours), 'logged key')} not computed here"
    missing = f"{plural(len(comparison.not_logged), 'computed key')} not logged"
    out.print(f"[dim]{others}; {missing}{'' if verbose else ' (names: -v)'}[/]")
    if verbose:
        for names in (comparison.not_ours, comparison.not_logged):
            out.print(f"[dim]{escape(', '.join(names))}[/]")


def _draw_alone(out: Console, comparison: LogComparison, lines: int | None) -> None:
    """Draw what the log shows by itself, if that is a fault; None: in all its lines."""
    shows = comparison.log_shows
    if shows is not None and shows.log_verdict not in ("healthy", "inconclusive"):
        said = f"the log alone: {shows.log_verdict}. {shows.summary}"
        out.print(escape(said if lines is None else shortened_to(said, out.width, lines)))


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
