"""Results on the terminal: to add a kind, a function in a file of its own and one line in DRAWN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape

from cli.terminal.cells import COLOURS
from cli.terminal.compare import draw_compare
from cli.terminal.diagnose import draw_diagnose
from cli.terminal.headline import draw_closing, draw_headline
from cli.terminal.replay import draw_replay
from cli.terminal.score import draw_score
from cli.terminal.sweep import draw_sweep
from rcdiag.pages.answers import answer
from rcdiag.pages.headline import headline
from rcdiag.results import Finding, Result
from rcdiag.results.base import drawn_sentence

DRAWN: dict[str, Callable[[Console, Any, bool], None]] = {
    "score": draw_score,
    "compare": draw_compare,
    "diagnose": draw_diagnose,
    "sweep": draw_sweep,
    "replay": draw_replay,
}


def draw(out: Console, result: Result, *, verbose: bool) -> None:
    """Draw the verdict with its causes first, numbers and findings, and the verdict once more."""
    line = headline(result, answer(result))
    draw_headline(out, line, verbose)
    if sentence := drawn_sentence(result.provenance):
        out.print(sentence)
    DRAWN[result.kind](out, result, verbose)
    for finding in result.findings:
        _print_finding(out, finding)
    draw_closing(out, line)


def _print_finding(out: Console, finding: Finding) -> None:
    colour = COLOURS[finding.severity]
    out.print(
        f"\n[{colour}]{finding.severity}[/]  [bold]{finding.slug}[/]  {escape(finding.message)}"
    )
    out.print(f"  [dim]fix[/]  {escape(finding.fix)}")
