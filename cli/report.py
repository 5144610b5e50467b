"""`rcdiag report`: render a stored result again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli import options

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
    from rcdiag.errors import RcdiagError
    from rcdiag.results import from_json

    options.check_outputs([html, plots], force)
    try:
        text = sys.stdin.read() if result == "-" else Path(result).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RcdiagError(f"{result}: cannot be read ({error})", "give a result file") from error
    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    found = from_json(text, result)
    finish(found, screen, result=None, html=html, plots=plots, table=None)
    screen.exit(found, fail_on)
