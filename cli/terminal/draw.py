"""Draw results on the terminal; a new kind needs a module of its name here with `draw_KIND`."""

from __future__ import annotations

import io
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cli.terminal.fitted_tables import COLOURS
from cli.terminal.headline import draw_closing, draw_headline, draw_lines
from rcdiag.errors import on_command_line
from rcdiag.formats import plural
from rcdiag.pages.headline import answer, finding_parts, headline, more
from rcdiag.results import Finding
from rcdiag.results.base import drawn_sentence

if TYPE_CHECKING:
    from rcdiag.results import Result

LINES = 40  # height of the first screen


def draw(out: Console, result: Result, *, verbose: bool) -> None:
    """Draw the verdict with its causes, then numbers and findings, then the verdict again."""
    line = headline(result, answer(result))

    def begin(out: Console) -> None:
        draw_headline(out, line, verbose)
        if sentence := drawn_sentence(result.provenance):
            out.print(f"{sentence}\n")
        kind = result.kind  # import only the module of this kind, since importing takes time
        getattr(import_module(f"cli.terminal.{kind}"), f"draw_{kind}")(out, result, verbose)

    begin(out)
    if verbose:
        for finding in result.findings:
            _print_finding(out, finding)
        draw_closing(out, line)
        return
    begun = io.StringIO()
    begin(Console(file=begun, width=out.width))
    left = LINES - begun.getvalue().count("\n") - 4  # two blank lines, "and more", "more"
    draw_findings(out, result, max(left, 0))
    if result.findings or not begun.getvalue().endswith("\n\n"):
        out.print()
    draw_lines(out, [("more", more(result))])


def draw_findings(out: Console, result: Result, most: int) -> None:
    """Draw a line for each finding: severity, name, the numbers, and what to do."""
    if result.findings:
        out.print()
    # If only one finding is left, show it: "and 1 more" would take a line as well.
    shown = result.findings[: most + (len(result.findings) == most + 1)]
    for finding in shown:
        head = f"{finding.severity}  {finding.slug}  "
        what, to_do = map(on_command_line, finding_parts(finding, result))
        line = _fitted(what, to_do, out.width - len(head))
        out.print(
            f"[{COLOURS[finding.severity]}]{finding.severity}[/]  [bold]{finding.slug}[/]  "
            f"{escape(line)}",
            soft_wrap=True,
        )
    if left := len(result.findings) - len(shown):
        out.print(f"[dim]and {plural(left, 'more finding')} (-v)[/]")


def _fitted(what: str, to_do: str, room: int) -> str:
    """Fit the numbers of a finding, and what to do, into the rest of a line."""
    room = max(room, 24)
    if len(f"{what}: {to_do}") <= room:
        return f"{what}: {to_do}"
    brief = _cut(what, room - len(to_do) - 2)
    numbers = all(len(entry.split()) == 2 for entry in what.split(", "))  # `k3_kl 0.047`
    if numbers and ", " in brief and not to_do.startswith("see "):
        brief = f"{brief.rpartition(', ')[0]}, …"
    if to_do.startswith("see "):  # where the advice stands
        return f"{brief}: {to_do}"
    # A sentence that fits is kept whole; a longer one is cut to make room for a short advice.
    is_whole = not numbers and len(what) <= room
    return _cut(what, room) if is_whole or len(to_do) > room // 2 else f"{brief}: {to_do}"


def _cut(text: str, width: int) -> str:
    """Cut a text between words."""
    return textwrap.shorten(text, max(width, 12), placeholder=" …", break_on_hyphens=False)


def _print_finding(out: Console, finding: Finding) -> None:
    colour = COLOURS[finding.severity]
    out.print(
        f"\n[{colour}]{finding.severity}[/]  [bold]{finding.slug}[/]  "
        f"{escape(on_command_line(finding.message))}"
    )
    out.print(f"  [dim]fix[/]  {escape(on_command_line(finding.fix))}")
