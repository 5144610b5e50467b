"""Figures of a result: to add one, draw it and add an entry to the dict of its kind."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
from matplotlib.figure import Figure

from rcdiag.pages.compare.figures import FIGURES_OF_COMPARE
from rcdiag.pages.replay.figures import FIGURES_OF_REPLAY
from rcdiag.pages.score.figures import FIGURES_OF_SCORE
from rcdiag.pages.style import STYLE, FigureSpec
from rcdiag.pages.sweep.figures import FIGURES_OF_SWEEP
from rcdiag.results import Result

FIGURES: dict[str, dict[str, FigureSpec]] = {
    "score": FIGURES_OF_SCORE,
    "compare": FIGURES_OF_COMPARE,
    "sweep": FIGURES_OF_SWEEP,
    "replay": FIGURES_OF_REPLAY,
}


def drawn(result: Result) -> Iterator[tuple[str, FigureSpec, Figure]]:
    """Every figure that the result has data for."""
    for name, spec in FIGURES[result.kind].items():
        if spec.there(result):
            with mpl.rc_context(STYLE):
                figure = Figure(figsize=spec.size(result), layout="constrained")
                spec.draw(result, figure)
                yield name, spec, figure
