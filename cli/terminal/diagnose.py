"""A diagnosis is drawn on the terminal: its experiments, and whose weights made the rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import Column, fitted
from rcdiag.formats import number
from rcdiag.pages.diagnose.words import is_nearer, posterior_rows
from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult
from rcdiag.results.doc import heading_of

SHOWN = 6  # trials without -v, of those that come nearer than the checkpoint as it is


def draw_diagnose(out: Console, result: DiagnoseResult, verbose: bool) -> None:
    """Draw what the experiments leave unexplained, the best first."""
    if result.trainer_model is None:
        out.print("[dim]no --model was given: the causes are told by the table alone[/]")
        return
    read = (
        f"{result.rows_read:,} rows scored with {result.trainer_model} in {result.duration:.0f} s"
    )
    out.print(f"[dim]{escape(read)}[/]\n")
    nearer = [one for one in result.experiments if is_nearer(one)]
    shown = result.experiments if verbose else nearer[:SHOWN]
    if shown:
        out.print(_experiments(out, shown))
    if more := len(result.experiments) - len(shown):
        trials = f"{more} more trial{'s' * (more != 1)}" if shown else f"{more} trials"
        nearer_too = len(nearer) > len(shown)
        nearest = "" if nearer_too else ", which come no nearer than the checkpoint as it is"
        out.print(f"[dim]{trials}{nearest} (all: -v)[/]")
    for line in posterior_rows(result):
        out.print(escape(line))
    if result.open:
        out.print(f"[dim]no time left for: {', '.join(result.open)} (--budget)[/]")


def _experiments(out: Console, shown: Sequence[ExperimentResult]) -> Table:
    columns = [
        Column(heading="column", align="left", leaves=3),
        Column(heading="supposed", align="left", words=True),
        Column(heading="cause", align="left", leaves=1),
        Column(heading=heading_of(ExperimentResult, "rms_before")),
        Column(heading=heading_of(ExperimentResult, "rms_left")),
        Column(heading=heading_of(ExperimentResult, "z"), leaves=2),
        Column(heading="", align="left"),
    ]
    rows = [
        [
            one.column,
            escape(one.setting),
            one.cause,
            number(one.rms_before),
            number(one.rms_left),
            f"{one.z:.0f}",
            "[green]explained[/]" if one.explained else "",
        ]
        for one in shown
    ]
    return fitted(out, columns, rows, gap=2)
