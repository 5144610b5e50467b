"""Figures as files: PDF and SVG for papers, PNG, and their numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.files import csv_cell, inside, write_bytes, write_text
from rcdiag.pages.charts import Value
from rcdiag.pages.figures import applying
from rcdiag.pages.page_figures import draw
from rcdiag.pages.rendering import rendered
from rcdiag.pages.sweep.families import family_figures
from rcdiag.results import Result, SweepResult

KINDS = ("pdf", "svg", "png")


def save_figures(
    result: Result, folder: Path, *, only: Collection[str] = (), width: float | None = None
) -> list[Path]:
    """Write figures to the folder as NAME.pdf, .svg and .png, and their numbers as NAME.csv.

    `only` selects figures by name; by default all that apply are written. `width` is in inches, and
    the height is scaled with it. Figures have no titles, since a paper has captions.
    """
    families = family_figures(result) if isinstance(result, SweepResult) else []
    specs = [*applying(result), *families]
    known = [spec.name for spec in specs]
    for name in only:
        if name not in known:
            raise RcdiagError(
                f"this result of `{result.kind}` has no figure `{name}`",
                hint=f"{did_you_mean(name, known)}it has {', '.join(known)}",
            )
    written = []
    folder_of = f"a result of rcdiag {result.kind}"
    for spec in specs:
        if only and spec.name not in only:
            continue
        figure = draw(spec, result, width)
        for kind in KINDS:
            path = inside(folder, f"{spec.name}.{kind}", folder_of)
            write_bytes(path, rendered(figure, kind))
            written.append(path)
        if spec.chart is not None:
            chart = spec.chart(result)
            path = inside(folder, f"{spec.name}.csv", folder_of)
            write_text(path, table_text(chart.columns, chart.rows))
            written.append(path)
    return written


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """Return a table as CSV: None is empty, and no text can act as a spreadsheet formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows(map(csv_cell, row) for row in (columns, *rows))
    return stream.getvalue()
