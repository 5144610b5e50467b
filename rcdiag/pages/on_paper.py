"""The matplotlib figure on which all drawings are made; it shows itself in a notebook."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, SymmetricalLogLocator

from rcdiag.pages.style import NARROW
from rcdiag.pages.svg import rendered

NOTEBOOK_DPI = 110
COLUMN_LETTERS = 6.5  # points, what journals allow for labels
COLUMN_TICKS = 4


def fit_column(figure: Figure, width: float) -> None:
    """Shrink letters and thin out ticks of a drawing that is as wide as a column of a paper."""
    if width >= NARROW:
        return
    for words in figure.findobj(Text):
        words.set_fontsize(min(words.get_fontsize(), COLUMN_LETTERS))
    for axes in figure.axes:
        axes.tick_params(which="both", labelsize=COLUMN_LETTERS)
        locator = axes.xaxis.get_major_locator()
        if isinstance(locator, MaxNLocator):
            locator.set_params(nbins=COLUMN_TICKS)
        elif isinstance(locator, (LogLocator, SymmetricalLogLocator)):
            locator.set_params(numticks=COLUMN_TICKS)
            axes.xaxis.set_minor_formatter(NullFormatter())


class PaperFigure(Figure):
    """A figure without a window: a notebook shows it as a picture, without any set-up."""

    def _repr_png_(self) -> bytes:
        return rendered(self, "png", NOTEBOOK_DPI)
