"""Draw the headline of a result: verdict, cause, what to do, why, and the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import COLOURS
from rcdiag.pages.headline import FACTS, Headline, by_reason
from rcdiag.results import Action, Diagnosis

LABELS = 14  # width of the labels on the left
ALSO = 2  # further causes shown without -v
NEXT = 1  # experiments shown without -v
# What is left out first where numbers and findings need the lines. E[ratio], which decides whether
# weights are valid, is often the second fact: facts go last.
DISPENSABLE = (
    *("ruled out", "or", "third action", "change", "second action", "next", "second fact", "why"),
)


def draw_headline(
    out: Console, headline: Headline, verbose: bool, most: int, keep: Sequence[str] = ()
) -> None:
    """Draw verdict and cause, up to three actions, evidence, ruled-out causes, and numbers.

    What is above the numbers is the same for every command. Where all is higher than `most` lines
    without `verbose`, some of `DISPENSABLE` is left out, in their order; what `keep` names stays.
    """
    parts = [part for part in DISPENSABLE if part not in keep]
    tried = (_grid(out, headline, verbose, parts[:number]) for number in range(len(parts) + 1))
    grid = next(tried)
    while not verbose and len(out.render_lines(grid)) >= most and (lower := next(tried, None)):
        grid = lower
    out.print(grid)
    out.print()


def _grid(out: Console, headline: Headline, verbose: bool, without: Sequence[str]) -> Table:
    """Return the headline without its numbers and without some of `DISPENSABLE`."""
    colour = COLOURS[headline.level]
    grid = Table.grid(padding=(0, 0, 0, 0))
    grid.add_column(width=LABELS, no_wrap=True)
    grid.add_column(overflow="fold")
    cause = f"[bold]{escape(headline.cause)}[/]" if headline.cause else ""
    grid.add_row(f"[bold {colour}]{headline.verdict}[/]", _beside(cause, headline, out.width))
    if cause and not _fits(headline, out.width):
        grid.add_row("", f"[dim]{escape(headline.about)}[/]")
    width = out.width - LABELS

    def brief(text: str, lines: int) -> str:
        """Escape a text, cut to a few lines unless `verbose`."""
        return escape(text if verbose else shortened_to(text, width, lines))

    # The end of an inconclusive summary says what would decide, such as more rows: it is not cut.
    grid.add_row("", brief(headline.summary, 99 if headline.verdict == "inconclusive" else 6))
    if headline.log:
        grid.add_row("log", brief(headline.log, 3))
    actions = headline.actions[: 2 if "third action" in without else None]
    actions = actions[: 1 if "second action" in without else None]
    for index, action in enumerate(actions, 1):
        grid.add_row(f"{'do' if index == 1 else '':<9}{index}", _action(action, out.width))
    facts = headline.evidence if verbose else headline.evidence[:FACTS]
    facts = facts[: 0 if "why" in without else 1 if "second fact" in without else None]
    for label, text in labelled("why", facts):
        grid.add_row(label, brief(text, 3))  # what a fact means stands at its end
    for label, text in labelled("also", headline.also if verbose else headline.also[:ALSO]):
        grid.add_row(label, brief(text, 2))
    if headline.possible and "or" not in without:
        grid.add_row("or", brief(", ".join(headline.possible), 2))
    if headline.steps:
        grid.add_row("steps", brief(headline.steps, 2))
    if headline.change and "change" not in without:
        grid.add_row("change", brief(headline.change, 2))
    if headline.ruled_out and "ruled out" not in without:
        grid.add_row("not", f"[dim]{escape(_ruled_out(headline, width, verbose))}[/]")
    steps = headline.next if verbose else headline.next[: 0 if "next" in without else NEXT]
    for index, action in enumerate(steps):
        grid.add_row("next" if index == 0 else "", _action(action, out.width))
    grid.add_row("numbers", escape(headline.numbers))
    return grid


def _ruled_out(headline: Headline, width: int, verbose: bool) -> str:
    """List the ruled-out causes on one line; with `verbose` also the reasons."""
    if verbose:
        return "; ".join(
            f"{', '.join(slugs)}{f': {why}' if why else ''}"
            for why, slugs in by_reason(headline.ruled_out).items()
        )
    slugs = [slug for slug, _ in headline.ruled_out]
    rest = "why" if any(reason for _, reason in headline.ruled_out) else "all"
    text = ""
    for count in range(1, len(slugs) + 1):
        more = f", and {len(slugs) - count} more" if count < len(slugs) else ""
        longer = f"{', '.join(slugs[:count])}{more} ({rest}: -v)"
        if text and len(longer) > width:
            break
        text = longer
    return text


def shortened_to(text: str, width: int, lines: int) -> str:
    """Cut a text to a few lines: after the last sentence or clause that ends in their second half,
    or a sentence that ends in their last two thirds, otherwise between words.
    """

    def wrapped(text: str, most: int | None = None) -> list[str]:
        return textwrap.wrap(
            text, max(width, 20), max_lines=most, placeholder=" …", break_on_hyphens=False
        )

    whole = wrapped(text)
    if len(whole) <= lines:
        return "\n".join(whole)
    kept = " ".join(whole[:lines])
    for mark, least in ((". ", 1 / 2), ("; ", 1 / 2), (": ", 1 / 2), (", ", 1 / 2), (". ", 1 / 3)):
        end = kept.rfind(mark)
        if end >= least * len(kept):
            return "\n".join(wrapped(f"{kept[:end]}."))
    return "\n".join(wrapped(text, lines))


def draw_lines(out: Console, lines: Sequence[tuple[str, str]]) -> None:
    """Draw labelled sentences below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(escape(label), escape(text))
    out.print(grid)


def _fits(headline: Headline, width: int) -> bool:
    return LABELS + len(headline.cause) + 2 + len(headline.about) <= width


def _beside(cause: str, headline: Headline, width: int) -> str:
    """Return the cause with the table's size at the right, if one line holds both."""
    about = f"[dim]{escape(headline.about)}[/]"
    if not cause:
        return about
    if not _fits(headline, width):
        return cause
    gap = width - LABELS - len(headline.cause) - len(headline.about)
    return f"{cause}{' ' * gap}{about}"


def _action(action: Action, width: int) -> str:
    """Return an action as text; a command that does not fit beside it gets its own line."""
    if action.command is None:
        return escape(action.text)
    fits = LABELS + len(action.text) + 2 + len(action.command) <= width
    return f"{escape(action.text)}:{' ' if fits else chr(10)}[cyan]{escape(action.command)}[/]"


def labelled(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return lines with a label beside the first of them."""
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]


def draw_against_weights(
    out: Console, diagnosis: Diagnosis | None, levels: Collection[str | None]
) -> None:
    """Print the sentence that no weights repair the table, if the diagnosis has one.

    `levels` are those of the presets on the screen.
    """
    against = None if diagnosis is None else diagnosis.against_weights(levels)
    if against is not None:
        out.print(f"[{COLOURS['error']}]{escape(against)}[/]")


def draw_closing(out: Console, headline: Headline) -> None:
    """Draw the last lines of a command: verdict and cause again, and what to run next."""
    colour = COLOURS[headline.level]
    grid = Table.grid(padding=(0, 0, 0, 0))
    grid.add_column(width=LABELS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(f"[bold {colour}]{headline.verdict}[/]", f"[bold]{escape(headline.cause)}[/]")
    # The first command of experiments and actions, or `explain` of the cause, or a text.
    steps = (*headline.next, *headline.actions)
    known = [step.command for step in steps if step.command]
    if cause := headline.cause.split(",")[0]:
        known.append(f"rcdiag explain {cause}")
    known += [step.text for step in steps]
    if known:
        grid.add_row("next", f"[cyan]{escape(known[0])}[/]")
    out.print()
    out.print(grid)
