"""`rcdiag report`: stored results become a page."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rcdiag
from cli import options
from cli.process import resume_collection
from rcdiag.errors import RcdiagError
from rcdiag.files import check_apart, check_outputs

if TYPE_CHECKING:
    from cli.terminal.screen import Screen

EPILOG = (
    "Examples: `rcdiag report score.json sweep.json --html page.html` makes one page of all that "
    "is known of a dump; `rcdiag report before.json --against after.json --html page.html` says "
    "what changed."
)


def report(
    results: Annotated[
        list[str],
        typer.Argument(metavar="RESULT.json...", help="Result files of one dump, or - for stdin"),
    ],
    html: options.HtmlFile = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RESULT.json",
            help="Result of a second dump: the page says what changed. May be repeated",
        ),
    ] = None,
    plots: options.PlotsFolder = None,
    notebook: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.ipynb",
            help="Write a notebook: a cell for each figure, drawn already. It loads the result "
            "files",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    figure: options.Figures = None,
    width: options.FigureWidth = None,
    no_host: Annotated[
        bool,
        typer.Option(
            "--no-host",
            help="Leave the names of machines out of the page, for those outside",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a page of results, without the data and without torch."""
    from cli.outputs import Drawing
    from cli.terminal.screen import Screen

    check_apart([html, plots, notebook], [*results, *(against or ())])
    check_outputs([html, plots, notebook], force=force)
    Drawing.of(plots, figure, width)
    if against and html is None:
        raise RcdiagError("--against is for pages", hint="give --html FILE.html")
    if no_host and html is None:
        raise RcdiagError("--no-host is for pages", hint="give --html FILE.html")
    documents = [
        rcdiag.load_result(sys.stdin if source == "-" else Path(source)) for source in results
    ]
    if json and len(documents) > 1:
        raise RcdiagError(f"--json prints one document, not {len(documents)}")
    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    written = []
    resume_collection()
    with _drawn(results, documents, verbose):
        if html is not None or plots is not None or notebook is not None:
            written = rcdiag.report(
                _with_files(results, documents),
                html,
                against=against or (),
                plots=plots,
                notebook=notebook,
                figures=figure or (),
                width=width,
                host=not no_host,
                force=True,
            )
        for path in written:
            screen.wrote(path)
        second = [] if json else [rcdiag.load_result(source) for source in against or ()]
        _show(screen, documents, second)
    for document in documents:
        if not isinstance(document, rcdiag.ConvertResult):
            screen.exit(document, fail_on)


def _show(
    screen: Screen,
    first: Sequence[rcdiag.Result | rcdiag.ConvertResult],
    second: Sequence[rcdiag.Result | rcdiag.ConvertResult],
) -> None:
    """Show the results of one dump, or under headings those of two."""
    for name, documents in (("before", first), ("after", second)):
        for document in documents:
            if second:
                screen.heading(name)
            if isinstance(document, rcdiag.ConvertResult):
                screen.show_conversion(document)
            else:
                screen.show(document)


def _with_files(
    sources: Sequence[str], documents: Sequence[rcdiag.Result | rcdiag.ConvertResult]
) -> list[str | rcdiag.Result | rcdiag.ConvertResult]:
    """Name the file of each result where it has one: a notebook loads it from there."""
    pairs = zip(sources, documents, strict=True)
    return [document if source == "-" else source for source, document in pairs]


@contextlib.contextmanager
def _drawn(
    sources: list[str], documents: Sequence[rcdiag.Result | rcdiag.ConvertResult], verbose: bool
) -> Iterator[None]:
    """Refuse documents whose values cannot be drawn; with `verbose` say where in the code."""
    from rcdiag.api.report import NOT_DRAWN, drawable  # with every kind of result

    try:
        with drawable(sources, documents):
            yield
    except RcdiagError as error:
        if verbose and isinstance(error.__cause__, NOT_DRAWN):
            raise error.__cause__ from None
        raise
