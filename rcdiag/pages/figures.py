"""Figures of all pages are listed in the order in which a page shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rcdiag.pages import compare, diagnose, replay, score, sweep
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.style import STYLE
from rcdiag.registry import Registry
from rcdiag.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: Registry[FigureSpec] = Registry(
    "figure", (*score.FIGURES, *compare.FIGURES, *diagnose.FIGURES, *sweep.FIGURES, *replay.FIGURES)
)


def drawn(result: Result) -> Iterator[tuple[FigureSpec, Figure]]:
    """Draw every figure that the result has data for."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    for spec in FIGURES.values():
        if spec.kind == result.kind and spec.applies(result):
            with mpl.rc_context(STYLE):
                figure = Figure(figsize=spec.size(result), layout="constrained")
                spec.draw(result, figure)
                yield spec, figure
