"""Figures as files: PDF and SVG for papers, PNG, and their numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.files import csv_cell, inside, write_bytes, write_text
from rcdiag.pages.charts import Chart, Value
from rcdiag.pages.figures import applying
from rcdiag.pages.numbers import drawn_numbers
from rcdiag.pages.page_figures import drawing
from rcdiag.pages.svg import rendered
from rcdiag.pages.sweep.families import chosen_bounds, family_figure
from rcdiag.results import Result, SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("pdf", "svg", "png")


def save_figures(
    result: Result, folder: Path, *, only: Collection[str] = (), width: float | None = None
) -> list[Path]:
    """Write figures into the folder as NAME.pdf, .svg and .png, and their numbers as NAME.csv.

    `only` names the figures that are written, of all that apply; `width` is in inches, and the
    height goes with it. Figures have no titles: a paper has a caption.
    """
    known = [name for name, _, _ in _figures(result, (), width)]
    for name in only:
        if name not in known:
            raise RcdiagError(
                f"this result of `{result.kind}` has no figure `{name}`",
                hint=f"{did_you_mean(name, known)}it has {', '.join(known)}",
            )
    written = []
    for name, make, chart in _figures(result, only, width):
        figure = make()
        for kind in KINDS:
            path = inside(folder, f"{name}.{kind}", f"a result of rcdiag {result.kind}")
            write_bytes(path, rendered(figure, kind))
            written.append(path)
        path = inside(folder, f"{name}.csv", f"a result of rcdiag {result.kind}")
        columns, rows = drawn_numbers(figure) if chart is None else (chart.columns, chart.rows)
        write_text(path, table_text(columns, rows))
        written.append(path)
    return written


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """Write a table as CSV; what is not known is empty, and no text is a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(map(csv_cell, row) for row in (columns, *rows))
    return stream.getvalue()


Made = tuple[str, Callable[[], "Figure"], Chart | None]


def _figures(result: Result, only: Collection[str], width: float | None) -> Iterator[Made]:
    """Return name, drawing and numbers of figures; a sweep has those of its families too."""
    for spec in applying(result):
        if not only or spec.name in only:
            chart = None if spec.chart is None else spec.chart(result)
            yield spec.name, partial(drawing, spec, result, width), chart
    if not isinstance(result, SweepResult):
        return
    for name, family in result.families.items():
        if not only or f"family-{name}" in only:
            chosen = chosen_bounds(result, name)
            yield f"family-{name}", partial(family_figure, family, width, chosen), None
