"""`rcdiag report`: render a stored result again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import rcdiag
from cli import options
from rcdiag.files import check_outputs

EPILOG = "Example: `rcdiag report result.json --html result.html`"


def report(
    result: Annotated[
        str, typer.Argument(metavar="RESULT.json", help="Result file, or - for stdin")
    ],
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Render a result again, without the data and without torch."""
    from cli.outputs import finish
    from cli.terminal.screen import Screen

    check_outputs([html, plots], force=force)
    document = rcdiag.load_result(sys.stdin if result == "-" else Path(result))
    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    if isinstance(document, rcdiag.ConvertResult):
        if html is not None or plots is not None:
            rcdiag.report(document, html, plots=plots)
        screen.show_conversion(document)
        return
    finish(document, screen, html=html, plots=plots, fail_on=fail_on)
