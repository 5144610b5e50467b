"""Figures as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from rcdiag.files import write_bytes
from rcdiag.pages.figures import drawn
from rcdiag.pages.style import STYLE
from rcdiag.pages.svg import rendered
from rcdiag.pages.sweep.figures import family_figure
from rcdiag.pages.sweep.tables import sliders
from rcdiag.results import Result, SweepResult


def save_figures(result: Result, folder: Path) -> list[Path]:
    """PNG and SVG files of all figures."""
    written = []
    for name, title, figure in _titled(result):
        figure.axes[0].set_title(title, loc="left")
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_bytes(path, rendered(figure, kind))
            written.append(path)
    return written


def _titled(result: Result) -> Iterator[tuple[str, str, Figure]]:
    """The figures of the page; of a sweep those of its families too."""
    yield from ((name, spec.title, figure) for name, spec, figure in drawn(result))
    if isinstance(result, SweepResult):
        for name, family in result.families.items():
            with mpl.rc_context(STYLE):
                figure, _ = family_figure(family, sliders(family))
                yield f"family-{name}", family.title, figure
