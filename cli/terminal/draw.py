"""Draw results on the terminal; a new kind needs a module of its name here with `draw_KIND`."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import COLOURS
from cli.terminal.headline import draw_closing, draw_headline, draw_lines
from rcdiag.errors import on_command_line
from rcdiag.formats import plural
from rcdiag.pages.headline import answer, finding_parts, headline, more
from rcdiag.results import Finding
from rcdiag.results.base import drawn_sentence

if TYPE_CHECKING:
    from rcdiag.results import Result

LINES = 40  # height of the first screen at 80 columns; below, it grows as the width shrinks
ROWS = 8  # keys of a training log in each table; fewer where the headline needs room
FINDINGS = 2  # findings for which the headline leaves room; for errors always


def draw(out: Console, result: Result, *, verbose: bool, has_page: bool = False) -> None:
    """Draw the verdict with its causes, then numbers and findings, then the verdict again.

    With `has_page` an HTML page of the result was written, which needs no mention.
    """
    line = headline(result, answer(result))
    lines = LINES * 80 // min(out.width, 80)
    of_log = bool(getattr(result, "logs", ()))
    has_log = of_log or getattr(result, "logged", None) is not None
    keep = ("next",) if of_log else ()  # a log alone settles little: the next step is its point
    if verbose:
        draw_headline(out, line, verbose, lines)
        _draw_body(out, result, verbose, ROWS)
        for finding in result.findings:
            _print_finding(out, finding)
        draw_closing(out, line)
        return

    def height(draw_it: Callable[[Console], None]) -> int:
        """Return how many lines something has on this screen."""
        drawn = io.StringIO()
        draw_it(Console(file=drawn, width=out.width))
        return drawn.getvalue().count("\n")

    def end(out: Console) -> None:
        if body or result.findings:  # the headline ends with an empty line
            out.print()
        draw_lines(out, [("more", more(result, has_page=has_page))])

    def height_of(rows: int) -> int:
        return height(lambda out: _draw_body(out, result, verbose, rows))

    least = max(counted_errors(result), min(len(result.findings), FINDINGS))
    least_headline = height(lambda out: draw_headline(out, line, verbose, 0, (*keep, "why")))
    # Above the findings is a blank line, and below them one says how many there are more.
    around = (1 if least else 0) + (len(result.findings) > least)
    rows, body = ROWS, height_of(ROWS)
    while has_log and rows > 1 and least_headline + body + least + around + height(end) > lines:
        rows -= 1
        body = height_of(rows)
    below = body + height(end) + around
    most = lines - below - least
    draw_headline(out, line, verbose, most, keep)
    _draw_body(out, result, verbose, rows)
    above = height(lambda out: draw_headline(out, line, verbose, most, keep))
    if body and result.findings:
        out.print()
    draw_findings(out, result, max(lines - above - below, counted_errors(result)))
    end(out)


def _draw_body(out: Console, result: Result, verbose: bool, rows: int) -> None:
    """Draw the numbers of a command; of training logs, at most `rows` rows of each table."""
    if sentence := drawn_sentence(result.provenance):
        out.print(f"{sentence}\n")
    if logs := getattr(result, "logs", ()):
        import_module("cli.terminal.diagnose").draw_logs(out, logs, verbose, rows)
        return
    kind = result.kind  # import only the module of this kind, since importing takes time
    getattr(import_module(f"cli.terminal.{kind}"), f"draw_{kind}")(out, result, verbose)
    if logged := getattr(result, "logged", None):
        import_module("cli.terminal.logged").draw_logged(out, logged, verbose, rows)


def counted_errors(result: Result) -> int:
    """Return how many findings are errors."""
    return sum(finding.severity == "error" for finding in result.findings)


def draw_findings(out: Console, result: Result, most: int) -> None:
    """Draw findings in `most` lines: severity, name, the numbers, and what to do.

    Each has a line; where lines are left, what does not fit into one has a second.
    """
    # If only one finding is left, show it: "and 1 more" would take a line as well.
    shown = result.findings[: most + (len(result.findings) == most + 1)]
    spare = most - len(shown)
    for finding in shown:
        head = f"{finding.severity}  {finding.slug}  "
        what, to_do = map(on_command_line, finding_parts(finding, result))
        lines = _wrapped(f"{what}: {to_do}", out.width, len(head))
        if len(lines) > 1 and spare < 1:
            lines = [_fitted(what, to_do, out.width - len(head))]
        spare -= len(lines) - 1
        out.print(
            f"[{COLOURS[finding.severity]}]{finding.severity}[/]  [bold]{finding.slug}[/]  "
            f"{escape(chr(10).join(lines))}",
            soft_wrap=True,
        )
    if left := len(result.findings) - len(shown):
        out.print(f"[dim]and {plural(left, 'more finding')} (-v)[/]")


def _wrapped(text: str, width: int, begun: int) -> list[str]:
    """Break a text into at most two lines; the first goes on after `begun` characters."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * begun,
        subsequent_indent="    ",
        max_lines=2,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [lines[0][begun:], *lines[1:]]


def _fitted(what: str, to_do: str, room: int) -> str:
    """Fit a finding into the rest of a line: advice stands there whole or not at all.

    Of several numbers the first ones are kept, so that a short advice has room.
    """
    room = max(room, 24)
    entries = what.split(", ")
    brief = len(f": {to_do}") if len(to_do) <= 20 else 0  # `see action 1`
    if all(len(entry.split()) == 2 for entry in entries):  # `k3_kl 0.047, k2_kl 0.05`
        while len(entries) > 1 and len(", ".join((*entries, "…"))) + brief > room:
            entries.pop()
        what = what if what == ", ".join(entries) else ", ".join((*entries, "…"))
    whole = f"{what}: {to_do}"
    if len(whole) <= room:
        return whole
    short = textwrap.shorten(what, room, placeholder=" …", break_on_hyphens=False)
    # A first word that alone is too long, such as a path, is cut within.
    return f"{what[: room - 2]} …" if short.strip() == "…" else short


def _print_finding(out: Console, finding: Finding) -> None:
    colour = COLOURS[finding.severity]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    message = escape(on_command_line(finding.message))
    grid.add_row(f"[{colour}]{finding.severity}[/]", f"[bold]{finding.slug}[/]  {message}")
    grid.add_row("[dim]fix[/]", escape(on_command_line(finding.fix)))
    out.print()
    out.print(grid)
