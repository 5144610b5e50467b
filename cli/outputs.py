"""The end of every command: write what was asked for, then show the result."""

from __future__ import annotations

from pathlib import Path

from cli.terminal.screen import Screen
from rcdiag.files import write_text
from rcdiag.results import Result, to_json


def finish(
    found: Result,
    screen: Screen,
    *,
    result: Path | None,
    html: Path | None,
    plots: Path | None,
    table: Path | None,
) -> None:
    """Write result, report and figures; the verdict comes last on the screen."""
    written = [] if table is None else [table]
    if result is not None:
        write_text(result, to_json(found))
        written.append(result)
    if html is not None:
        from rcdiag.pages.page import page

        write_text(html, page(found))
        written.append(html)
    if plots is not None:
        from rcdiag.pages.save import save_figures

        written += save_figures(found, plots)
    screen.show(found, to_json)
    for path in written:
        screen.say(f"Wrote {path}")
