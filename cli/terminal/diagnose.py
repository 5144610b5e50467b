"""Draw a diagnosis on the terminal: its experiments, and which checkpoint made which rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import ScreenColumn, fitted
from cli.terminal.headline import draw_lines, shortened_to
from rcdiag.formats import number, plural
from rcdiag.pages.diagnose.logs import in_order, names_of
from rcdiag.pages.diagnose.words import explains, is_nearer, posterior_rows
from rcdiag.pages.score.training import OF_TRAINING
from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult
from rcdiag.results.doc import heading_of
from rcdiag.results.log_summary import KeyMoved, LogSummary

SHOWN = 4  # settings that fit better than the checkpoint itself, shown without -v


def draw_diagnose(out: Console, result: DiagnoseResult, verbose: bool) -> None:
    """Draw which settings explain a column, and which rows match which checkpoint.

    With `verbose`, draw a table of all settings that were tried.
    """
    if result.trainer_model is None:
        return  # the headline says that no experiment was run
    read = f"{plural(result.rows_read, 'row')}, scored with {result.trainer_model}"
    if verbose:
        out.print(f"[dim]{escape(read)}[/]\n")
        if result.experiments:
            out.print(_experiments(out, result.experiments))
    lines = [] if verbose else [("tested", read), *_settings(result)]
    lines += [("rows", line) for line in posterior_rows(result)]
    if result.open:
        lines.append(("not run", f"{', '.join(result.open)}: no time left (--budget)"))
    draw_lines(out, lines)


def draw_logs(out: Console, logs: Sequence[LogSummary], verbose: bool, rows: int) -> None:
    """Draw `rows` keys of the logs that moved, and as many broken relations.

    With `verbose` draw all keys and relations. Of several logs each gets a part of the rows.
    """
    brief = len(logs) > 1 and not verbose
    room = rows if not brief else max(rows // len(logs), min(rows, 2))
    for place, (name, log) in enumerate(zip(names_of(logs), logs, strict=True)):
        if len(logs) > 1:
            said = f"{name}: {log.log_verdict}. {log.summary}"
            out.print(
                "\n" * (place > 0) + escape(shortened_to(said, out.width, 2 if brief else 99))
            )
        lines = [("log", note) for note in log.file_notes]
        if log.generations_of_log is not None and not brief:
            correction = f": {log.correction_of_log}" if log.correction_of_log else ""
            lines.append(("run", f"{log.generations_of_log}{correction}"))
        draw_lines(out, lines)
        if moved := in_order(log.keys_moved):
            if lines:
                out.print()
            out.print(_moved(out, moved, len(moved) if verbose else room))
        if len(log.keys_moved) > room and not verbose:
            out.print(f"[dim]and {len(log.keys_moved) - room} more (all: -v)[/]")
        relations = [
            (one.relation_level, f"{one.relation_says} ({one.relation})")
            for one in log.relations
            if verbose or (one.relation_level == "error" and not brief)
        ]
        draw_lines(out, relations if verbose else relations[:room])
        if len(relations) > room and not verbose:
            out.print(f"[dim]and {plural(len(relations) - room, 'more error')} (all: -v)[/]")
        if verbose:
            draw_lines(out, [(one.key, f"{one.quantity}: {one.means}") for one in log.quantities])


def _moved(out: Console, moved: Sequence[KeyMoved], room: int) -> Table:
    """Draw the first `room` keys that moved, up to half of them keys of the training.

    A key moved at `25`, with interval at `25 (24 to 26)`, gradually `from 25`.
    """
    training = [one for one in moved if one.quantity in OF_TRAINING][: room // 2]
    others = [one for one in moved if one not in training][: room - len(training)]
    columns = [
        ScreenColumn(heading="key that moved", align="left", words=True),
        ScreenColumn(heading="at step"),
        ScreenColumn(heading="median before"),
        ScreenColumn(heading="median after"),
    ]
    rows = []
    for one in moved:
        if one in training or one in others:
            interval = f" ({one.earliest} to {one.latest})" * (one.earliest < one.latest)
            step = f"{'from ' if one.shape == 'creep' else ''}{one.step_moved}{interval}"
            rows.append([escape(one.key), step, number(one.key_before), number(one.key_after)])
    return fitted(out, columns, rows, gap=2)


def _settings(result: DiagnoseResult) -> list[tuple[str, str]]:
    """Describe the settings that fit better than the checkpoint itself, the best first."""
    nearer = [one for one in result.experiments if is_nearer(one)]
    if any(one.explained for one in nearer):
        nearer = [one for one in nearer if one.explained]
    lines = [
        ("explained" if one.explained else "in part", f"{explains(one)} ({one.cause})")
        for one in nearer[:SHOWN]
    ]
    if left := len(result.experiments) - len(lines):
        other = plural(left, f"{'more ' if lines else ''}setting")
        none = "" if lines else ", none fits better than the checkpoint itself"
        lines.append(("tried", f"{other}{none} (all: -v)"))
    return lines


def _experiments(out: Console, shown: Sequence[ExperimentResult]) -> Table:
    columns = [
        ScreenColumn(heading="column", align="left", dispensable=3),
        ScreenColumn(heading="supposed", align="left", words=True),
        ScreenColumn(heading="cause", align="left", dispensable=1),
        ScreenColumn(heading=heading_of(ExperimentResult, "rms_before")),
        ScreenColumn(heading=heading_of(ExperimentResult, "rms_left")),
        ScreenColumn(heading=heading_of(ExperimentResult, "z"), dispensable=2),
        ScreenColumn(heading="", align="left"),
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
