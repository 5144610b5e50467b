"""The headline of a result is drawn first: verdict, cause, what to do, why, and the numbers."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.cells import COLOURS
from rcdiag.pages.headline import FACTS, RULED_OUT, Headline
from rcdiag.results import Action, Diagnosis

LABELS = 12  # columns of the labels on the left


def draw_headline(out: Console, headline: Headline, verbose: bool) -> None:
    """Draw verdict and cause, up to three actions, evidence, what is ruled out, and numbers."""
    colour = COLOURS[headline.level]
    grid = Table.grid(padding=(0, 0, 0, 0))
    grid.add_column(width=LABELS, no_wrap=True)
    grid.add_column(overflow="fold")
    cause = f"[bold]{escape(headline.cause)}[/]" if headline.cause else ""
    grid.add_row(f"[bold {colour}]{headline.verdict}[/]", _beside(cause, headline, out.width))
    if cause and not _fits(headline, out.width):
        grid.add_row("", f"[dim]{escape(headline.about)}[/]")
    grid.add_row("", escape(headline.summary))
    for index, action in enumerate(headline.actions, 1):
        grid.add_row(f"{'do' if index == 1 else '':<7}{index}", _action(action, out.width))
    facts = headline.evidence if verbose else headline.evidence[:FACTS]
    for label, text in _labelled("why", facts):
        grid.add_row(label, escape(text))
    for label, text in _labelled("also", headline.also):
        grid.add_row(label, escape(text))
    if headline.steps:
        grid.add_row("steps", escape(headline.steps))
    if headline.ruled_out:
        shown = headline.ruled_out if verbose else headline.ruled_out[:RULED_OUT]
        left = len(headline.ruled_out) - len(shown)
        more = f"; and {left} more (-v)" if left else ""
        by_reason: dict[str, list[str]] = {}
        for slug, reason in shown:
            by_reason.setdefault(reason, []).append(slug)
        said = "; ".join(f"{', '.join(slugs)}: {why}" for why, slugs in by_reason.items())
        grid.add_row("not", f"[dim]{escape(said)}{more}[/]")
    for index, action in enumerate(headline.next):
        grid.add_row("next" if index == 0 else "", _action(action, out.width))
    grid.add_row("numbers", escape(headline.numbers))
    out.print(grid)
    out.print()


def _fits(headline: Headline, width: int) -> bool:
    return LABELS + len(headline.cause) + 2 + len(headline.about) <= width


def _beside(cause: str, headline: Headline, width: int) -> str:
    """Write the cause with the table's size at the right, where one line holds both."""
    about = f"[dim]{escape(headline.about)}[/]"
    if not cause:
        return about
    if not _fits(headline, width):
        return cause
    gap = width - LABELS - len(headline.cause) - len(headline.about)
    return f"{cause}{' ' * gap}{about}"


def _action(action: Action, width: int) -> str:
    """Write an action; a command that does not fit beside its words has a line of its own."""
    if action.command is None:
        return escape(action.text)
    fits = LABELS + len(action.text) + 2 + len(action.command) <= width
    return f"{escape(action.text)}:{' ' if fits else chr(10)}[cyan]{escape(action.command)}[/]"


def _labelled(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]


def draw_against_weights(out: Console, diagnosis: Diagnosis | None) -> None:
    """Draw beneath a table of corrections that none of them mends the table, where so."""
    against = None if diagnosis is None else diagnosis.against_weights
    if against is not None:
        levels = "Levels say how weights are spread, not that they help."
        out.print(f"[{COLOURS['error']}]{escape(against)}[/] [dim]{levels}[/]")


def draw_closing(out: Console, headline: Headline) -> None:
    """Draw the last lines of a command: verdict and cause once more, and what to run next."""
    colour = COLOURS[headline.level]
    grid = Table.grid(padding=(0, 0, 0, 0))
    grid.add_column(width=LABELS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(f"[bold {colour}]{headline.verdict}[/]", f"[bold]{escape(headline.cause)}[/]")
    if (step := _next_step(headline)) is not None:
        grid.add_row("next", f"[cyan]{escape(step)}[/]")
    out.print()
    out.print(grid)


def _next_step(headline: Headline) -> str | None:
    """Return the first command of experiments and actions, else an explanation, else words."""
    steps = (*headline.next, *headline.actions)
    command = next((step.command for step in steps if step.command), None)
    cause = headline.cause.split(",")[0]
    if command is None and not cause:
        return steps[0].text if steps else None
    return command or f"rcdiag explain {cause}"
