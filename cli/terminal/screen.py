"""Show results on stdout, and messages and progress on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.text import Text

from cli.options import LEVELS
from cli.terminal.console import TerminalConsole, write_out
from cli.terminal.draw import draw
from cli.terminal.progress import Bars
from rcdiag.errors import on_command_line, one_of
from rcdiag.pages.headline import answer, compared
from rcdiag.results import SEVERITIES, ConvertResult, Document, Result, to_json
from rcdiag.results.diagnosis import SEVERITY_OF_VERDICT
from rcdiag.url_secrets import without_secrets


class Screen:
    """The result on stdout, all else on stderr; with `json` stdout has the document only.

    From the severity `fail_on` on, findings make the exit code 1.
    """

    def __init__(self, *, quiet: bool, verbose: bool, json: bool, fail_on: str = "never") -> None:
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.fail_on = one_of("--fail-on", fail_on, LEVELS)
        self.out = TerminalConsole(highlight=False)
        self.err = TerminalConsole(stderr=True, highlight=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Screen:
        """Make the screen from a command's values."""
        own = ("quiet", "verbose", "json", "fail_on")
        return cls(**{name: given[name] for name in own if name in given})

    def say(self, text: str) -> None:
        """Print a sentence on stderr."""
        if not self.quiet:
            self.err.print(escape(on_command_line(without_secrets(text))), soft_wrap=True)

    def wrote(self, path: Path, holds: str = "") -> None:
        """Say that a file or folder was written; its name is a link if the terminal has links."""
        if not self.quiet:
            name = (str(path), self.err.link_to(path))
            more = f": {holds}" if holds else ""
            self.err.print(Text.assemble("Wrote ", name, more), soft_wrap=True)

    def progress(self) -> Bars:
        """Return a listener for the library; its `with` block removes the bars at the end."""
        return Bars(self.err, self.say, quiet=self.quiet)

    def heading(self, title: str) -> None:
        """Draw a line with a title between two results."""
        if not self.quiet:
            self.out.rule(title, align="left", characters="-")

    def show(self, result: Document, *, has_page: bool = False) -> None:
        """Draw the result, or with `json` print its document; `has_page`: a page was written."""
        if self.json:
            write_out(to_json(result))
        elif not self.quiet:
            if isinstance(result, ConvertResult):
                from cli.terminal.convert import draw_convert  # needed by one command only

                draw_convert(self.out, result, self.verbose)
            else:
                draw(self.out, result, verbose=self.verbose, has_page=has_page)

    def show_text(self, result: Result, text: str) -> None:
        """Print a text made from the result on stdout, with the verdict on stderr."""
        verdict = "not judged" if result.diagnosis is None else result.diagnosis.verdict
        self.say(f"{verdict}; {answer(result)}")
        write_out(on_command_line(text))

    def exit(self, result: Document) -> None:
        """Exit 1 if findings or the verdict reach `fail_on`; say why."""
        if self.fail_on == "never" or isinstance(result, ConvertResult):
            return
        least = SEVERITIES.index(self.fail_on)
        failing = [f.slug for f in result.findings if SEVERITIES.index(f.severity) >= least]
        diagnosis = result.diagnosis
        verdict = None if diagnosis is None else diagnosis.verdict
        severity = None if diagnosis is None else diagnosis.severity
        if severity is not None and SEVERITIES.index(severity) >= least:
            alone = diagnosis is not None and not compared(diagnosis)
            why = ", as there is only one policy" if alone and verdict == "inconclusive" else ""
            failing.insert(0, f"verdict {verdict}{why}")
        # A log may break at steps outside the dump.
        logged = getattr(result, "logged", None)
        if logged is not None and logged.log_is_faulty:
            verdict = logged.log_shows.log_verdict
            if SEVERITIES.index(SEVERITY_OF_VERDICT[verdict]) >= least:
                failing.append(f"the log alone: {verdict}")
        if failing:
            slugs = ", ".join(dict.fromkeys(failing))
            self.err.print(f"exit 1 by --fail-on {self.fail_on}: {slugs}", soft_wrap=True)
            raise typer.Exit(1)
