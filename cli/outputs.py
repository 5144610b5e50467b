"""The end of every command: run the API or its dry run, write, show, exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from msgspec import Struct

import rcdiag
from cli.options import FailOn
from cli.process import allow_collection, hold_collection, resume_collection
from cli.terminal.console import write_out
from cli.terminal.screen import Screen, closing_line
from rcdiag.errors import RcdiagError, on_command_line
from rcdiag.files import write_text
from rcdiag.formats import plural
from rcdiag.results import to_json

if TYPE_CHECKING:
    from rcdiag.api.usecase import UseCase
    from rcdiag.results import Result

P = ParamSpec("P")
R = TypeVar("R")


def chosen(usecase: UseCase[P, R], dry_run: bool) -> Callable[P, R | str]:
    """Return the function of the API, or its dry run, which only says what it would do."""
    resume_collection()  # all modules of the command have been imported
    return usecase.dry_run if dry_run else usecase


class Drawing(Struct, frozen=True):
    """Where figures are written, which, and how wide."""

    folder: Path
    figures: Sequence[str]
    width: float | None

    @classmethod
    def of(
        cls, folder: Path | None, figures: Sequence[str] | None, width: float | None
    ) -> Drawing | None:
        """Return what to draw, None without --plots; refuse --figure and --width without it."""
        if folder is None:
            if figures or width is not None:
                raise RcdiagError(
                    "--figure and --width are for files of figures", hint="give --plots DIR"
                )
            return None
        if figures:  # refused before the work, not after it
            from rcdiag.pages.figures import FIGURES

            for name in figures:
                if not name.startswith("family-"):  # of a sweep
                    FIGURES.find(name, "--figure")
        return cls(folder, figures or (), width)


def finish(
    document: Result | str,
    screen: Screen,
    *,
    result: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    drawing: Drawing | None = None,
    written: Sequence[Path] = (),
    instead: Callable[[Any], str] | None = None,
    fail_on: FailOn,
) -> None:
    """Write result, CSV, report and figures, show the result, and exit as its findings ask.

    The outputs were checked before the work. `written` are files that are there already, `instead`
    makes a text of the result that stands on stdout alone, with a line on stderr; `document` is a
    text where nothing was run.
    """
    if isinstance(document, str):
        screen.say(document)
        return
    paths = list(written)
    if result is not None:
        write_text(result, to_json(document))
        paths.append(result)
    if csv is not None:
        from rcdiag.results.frames import csv_of

        write_text(csv, csv_of(document.frame()))
        paths.append(csv)
    if html is not None and drawing is None:
        hold_collection()  # drawing files leaves many objects behind, a page does not
    if html is not None or drawing is not None:
        try:
            made = rcdiag.report(
                document,
                html,
                plots=None if drawing is None else drawing.folder,
                figures=() if drawing is None else drawing.figures,
                width=None if drawing is None else drawing.width,
                force=True,
            )
        finally:
            allow_collection()
        figures = [path for path in made if drawing is not None and drawing.folder in path.parents]
        paths += [path for path in made if path not in figures]
    # Before the result, so that its last lines (verdict, cause, what to run next) stay the last.
    for path in paths:
        screen.wrote(path)
    if drawing is not None:
        screen.wrote(drawing.folder, plural(len(figures), "file"))
    if instead is None:
        screen.show(document)
    else:
        text = on_command_line(instead(document))
        screen.say(closing_line(document))
        write_out(text)
    screen.exit(document, fail_on)
