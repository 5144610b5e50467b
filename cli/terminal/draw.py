"""Results on the terminal: to add a kind, a file of its name here with a function `draw_KIND`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cli.terminal.cells import COLOURS
from cli.terminal.headline import draw_closing, draw_headline
from rcdiag.pages.answers import answer
from rcdiag.pages.headline import headline
from rcdiag.results import Finding
from rcdiag.results.base import drawn_sentence

if TYPE_CHECKING:
    from rcdiag.results import Result


def draw(out: Console, result: Result, *, verbose: bool) -> None:
    """Draw the verdict with its causes first, numbers and findings, and the verdict once more."""
    line = headline(result, answer(result))
    draw_headline(out, line, verbose)
    if sentence := drawn_sentence(result.provenance):
        out.print(sentence)
    kind = result.kind  # its file alone is loaded: those of other kinds take their time
    getattr(import_module(f"cli.terminal.{kind}"), f"draw_{kind}")(out, result, verbose)
    for finding in result.findings:
        _print_finding(out, finding)
    draw_closing(out, line)


def _print_finding(out: Console, finding: Finding) -> None:
    colour = COLOURS[finding.severity]
    out.print(
        f"\n[{colour}]{finding.severity}[/]  [bold]{finding.slug}[/]  {escape(finding.message)}"
    )
    out.print(f"  [dim]fix[/]  {escape(finding.fix)}")
