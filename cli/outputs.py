"""What a command adds to the call of the API: its dry run, and output files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from msgspec import Struct

import rcdiag
from cli.process import allow_collection, hold_collection, resume_collection
from rcdiag.errors import RcdiagError
from rcdiag.files import check_apart, check_document, check_outputs, write_text
from rcdiag.formats import plural
from rcdiag.results import to_json

if TYPE_CHECKING:
    from cli.terminal.screen import Screen
    from rcdiag.api.usecase import UseCase
    from rcdiag.results import Result

P = ParamSpec("P")
R = TypeVar("R")


def chosen(usecase: UseCase[P, R], dry_run: bool) -> Callable[P, R | str]:
    """Return the function of the API, or its dry run, which only says what it would do."""
    resume_collection()  # the command's modules are imported by now
    return usecase.dry_run if dry_run else usecase


class Outputs(Struct, frozen=True):
    """The files that a command writes of its result, checked before it runs."""

    result: Path | None
    csv: Path | None
    html: Path | None
    plots: Path | None  # folder of figures
    figures: Sequence[str]
    width: float | None

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> Outputs:
        """Read the outputs from a command's values.

        Refuses outputs that would overwrite an input or each other, and options of figures without
        `--plots`.
        """
        paths = {name: given.get(name) for name in ("result", "csv", "html", "plots", "notebook")}
        inputs = [given.get("trainer_config"), given.get("logged")]
        for name in ("source", "sources", "results", "against"):
            inputs += given.get(name, [])
        check_apart([*paths.values(), given.get("output"), given.get("save")], inputs)
        outputs = {name: None if path is None else Path(path) for name, path in paths.items()}
        if (result := outputs["result"]) is not None:
            check_document(result)
        files = [path for name, path in outputs.items() if name != "plots"]
        check_outputs(files, folder=outputs["plots"], force=given["force"])
        del outputs["notebook"]  # `report` writes it
        figures, width = given["figures"], given["width"]
        if outputs["plots"] is None and (figures or width is not None):
            raise RcdiagError(
                "--figure and --width are for files of figures", hint="give --plots DIR"
            )
        if figures or width is not None:
            from rcdiag.api.report import check_figures

            check_figures(figures, width)
        return cls(**outputs, figures=figures, width=width)

    @property
    def for_readers(self) -> bool:
        """Whether an output shows sequences and their text."""
        return any((self.result, self.html, self.plots))

    def write(self, document: Result, screen: Screen, written: Sequence[Path]) -> None:
        """Write all outputs, and say so; `written` are files that were written before."""
        paths = list(written)
        if self.result is not None:
            write_text(self.result, to_json(document))
            paths.append(self.result)
        if self.csv is not None:
            from rcdiag.results.frames import csv_of

            write_text(self.csv, csv_of(document.frame()))
            paths.append(self.csv)
        drawn = self._draw(document)
        figures = [path for path in drawn if self.plots is not None and self.plots in path.parents]
        # Say so before the result is shown, whose last lines (verdict, cause, what to run next)
        # should end the screen.
        for path in [*paths, *(path for path in drawn if path not in figures)]:
            screen.wrote(path)
        if self.plots is not None:
            screen.wrote(self.plots, plural(len(figures), "file"))

    def _draw(self, document: Result) -> list[Path]:
        if self.html is None and self.plots is None:
            return []
        if self.plots is None:
            hold_collection()  # a page makes hardly any garbage; matplotlib makes much
        try:
            return rcdiag.report(
                document,
                self.html,
                plots=self.plots,
                figures=self.figures,
                width=self.width,
                force=True,
            )
        finally:
            allow_collection()
