"""Figures as bytes of a PNG, SVG or PDF file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rcdiag.files import without_controls
from rcdiag.pages.style import own_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200  # of PNG files, and of rasterized parts of an SVG


def rendered(figure: Figure, kind: str, dpi: int = DPI) -> bytes:
    """Return the figure as bytes of a PNG, SVG or PDF file; equal figures give equal bytes."""
    stream = io.BytesIO()
    # savefig would draw the figure twice, the first time only for the layout.
    with own_style():
        figure.dpi = dpi
        if kind == "pdf":
            from matplotlib.backends.backend_pdf import FigureCanvasPdf

            FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})
        elif kind == "svg":
            from matplotlib.backends.backend_svg import FigureCanvasSVG

            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
            # A control character in a name would make the XML invalid.
            return without_controls(stream.getvalue().decode()).encode()
        else:
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            paper = figure.get_facecolor()
            figure.set_facecolor("white")
            FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})
            figure.set_facecolor(paper)
    return stream.getvalue()
