"""The matplotlib figure on which all drawings are made; it shows itself in a notebook."""

from __future__ import annotations

from matplotlib.figure import Figure

from rcdiag.pages.svg import rendered

NOTEBOOK_DPI = 110


class PaperFigure(Figure):
    """A figure without a window: a notebook shows it as a picture, without any set-up."""

    def _repr_png_(self) -> bytes:
        return rendered(self, "png", NOTEBOOK_DPI)
