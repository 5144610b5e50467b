"""A trainer's own log is drawn beside our numbers: a line for each key, those that differ first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import Column, fitted
from rcdiag.pages.score.logged import AGREES, LoggedLine, lines_of, sentences
from rcdiag.results import LogComparison, LoggedKey
from rcdiag.results.doc import heading_of

# Keys without an explanation whose notes are written where the screen is not verbose.
NOTES = 3


def draw_logged(out: Console, comparison: LogComparison, verbose: bool) -> None:
    """Draw one line for each key with the step that is furthest off, then why."""
    lines = lines_of(comparison)
    out.print(f"[bold]{escape(comparison.file)}[/] beside {_beside(comparison)}")
    out.print(_table(out, lines, comparison))
    for name, sentence in sentences(comparison, None if verbose else NOTES).items():
        out.print(f"[dim]{escape(name)}: {escape(sentence)}[/]")
    if comparison.step_reason:
        out.print(f"[dim]steps: {escape(comparison.step_reason)}[/]")
    others = f"keys of the log that are no numbers of ours: {len(comparison.not_ours)}"
    missing = f"of ours that are not in the log: {len(comparison.not_logged)}"
    out.print(f"[dim]{others}; {missing}{'' if verbose else ' (-v names them)'}[/]")
    if verbose:
        for names in (comparison.not_ours, comparison.not_logged):
            out.print(f"[dim]{escape(', '.join(names))}[/]")


def _beside(comparison: LogComparison) -> str:
    if comparison.preset is None:
        return "the mismatch"
    return f"preset {escape(comparison.preset)}: {escape(comparison.preset_reason)}"


def _table(out: Console, lines: Sequence[LoggedLine], comparison: LogComparison) -> Table:
    several = len(comparison.log_steps) > 1
    columns = [
        Column(heading=heading_of(LoggedKey, "key"), align="left"),
        *([Column(heading="step", leaves=1)] if several else []),
        Column(heading=heading_of(LoggedKey, "theirs")),
        Column(heading=heading_of(LoggedKey, "ours")),
        Column(heading=heading_of(LoggedKey, "explained_by"), align="left"),
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
