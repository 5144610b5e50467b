"""Every command goes the same way: run the API or its dry run, write, show, exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import rcdiag
from cli.freed_memory import resume_collection
from cli.options import FailOn
from cli.terminal.console import write_out
from cli.terminal.screen import Screen
from rcdiag.files import write_text
from rcdiag.results import to_json

if TYPE_CHECKING:
    from rcdiag.api.usecase import UseCase
    from rcdiag.results import Result

P = ParamSpec("P")
R = TypeVar("R")


def chosen(usecase: UseCase[P, R], dry_run: bool) -> Callable[P, R | str]:
    """Return the function of the API, or its dry run, which only says what it would do."""
    resume_collection()  # the modules of the command are there
    return usecase.dry_run if dry_run else usecase


def finish(
    document: Result | str,
    screen: Screen,
    *,
    result: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    plots: Path | None = None,
    written: Sequence[Path] = (),
    instead: str | None = None,
    fail_on: FailOn,
) -> None:
    """Write result, CSV, report and figures, show the result, and exit as its findings ask.

    The outputs were checked before the work. `written` are files that are there already, `instead`
    is a text that stands on stdout alone, `document` is a text where nothing was run.
    """
    if isinstance(document, str):
        screen.say(document)
        return
    paths = list(written)
    if result is not None:
        write_text(result, to_json(document))
        paths.append(result)
    if csv is not None:
        write_text(csv, document.frame().write_csv())
        paths.append(csv)
    if html is not None or plots is not None:
        paths += rcdiag.report(document, html, plots=plots, force=True)
    # Before the result, whose last lines stay the last: verdict, cause, what to run next.
    for path in paths:
        screen.wrote(path)
    (screen if instead is None else screen.aside()).show(document)
    if instead is not None:
        write_out(instead)
    screen.exit(document, fail_on)
