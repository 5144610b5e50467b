"""The matplotlib figure class of all drawings, which shows itself in a notebook."""

from __future__ import annotations

import re
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import (
    Formatter,
    LogFormatterMathtext,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    SymmetricalLogLocator,
)

from rcdiag.formats import RAISED
from rcdiag.pages.style import NARROW, NOTEBOOK_DPI
from rcdiag.pages.svg import rendered

COLUMN_LETTERS = 6.5  # points, what journals allow for labels
COLUMN_TICKS = 4


# A power in matplotlib's mathtext, and the characters that write it as plain text.
POWER = re.compile(r"\$\\mathdefault\{([-\d.]*)(\\times)?(\d*)\^\{(-?\d+)\}\}\$")


class PlainPowers(Formatter):
    """Tick labels of a logarithmic axis as plain text: mathtext is slow."""

    def __init__(self, formulas: LogFormatterMathtext) -> None:
        self._formulas = formulas

    def set_axis(self, axis: Any) -> None:
        super().set_axis(axis)
        self._formulas.set_axis(axis)

    def set_locs(self, locs: Any) -> None:
        super().set_locs(locs)
        self._formulas.set_locs(locs)

    def __call__(self, x: float, pos: int | None = None) -> str:
        return POWER.sub(_plain, self._formulas(x, pos)).replace("$\\mathdefault{0}$", "0")


def _plain(power: re.Match[str]) -> str:
    """Write one power: -2×10⁻³."""
    factor, times, base, exponent = power.groups()
    sign = factor.replace("-", "\N{MINUS SIGN}")
    return f"{sign}{'×' if times else ''}{base}{exponent.translate(RAISED)}"


def plain_ticks(figure: Figure) -> None:
    """Write the ticks of all logarithmic axes as plain text."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for get, put in (
            (axis.get_major_formatter, axis.set_major_formatter),
            (axis.get_minor_formatter, axis.set_minor_formatter),
        ):
            formatter = get()
            if isinstance(formatter, LogFormatterMathtext):
                put(PlainPowers(formatter))


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
