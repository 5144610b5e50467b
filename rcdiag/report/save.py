"""Figures as files."""

from __future__ import annotations

from pathlib import Path

from rcdiag.files import write_bytes
from rcdiag.report.figures import drawn
from rcdiag.report.svg import rendered
from rcdiag.results import Result


def save_figures(result: Result, folder: Path) -> list[Path]:
    """PNG and SVG files of all figures."""
    written = []
    for name, spec, figure in drawn(result):
        figure.axes[0].set_title(spec.title, loc="left")
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_bytes(path, rendered(figure, kind))
            written.append(path)
    return written
