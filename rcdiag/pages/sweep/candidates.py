"""A figure shows the candidates that the recommendation chooses among."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.results import SweepResult
from rcdiag.results.sweep import Candidate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ranking(result: SweepResult, figure: Figure) -> None:
    """Draw the efficiency of each candidate with its interval."""
    axes = figure.add_subplot()
    candidates = sorted(_scored(result), key=lambda c: -(c.efficiency.value or 0.0))
    for index, candidate in enumerate(candidates):
        value = candidate.efficiency
        assert value.value is not None
        colour = INK + "80" if candidate.refused else FIRST
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [index, index], color=colour, linewidth=1.6)
        chosen = candidate.name == result.recommendation.choice
        axes.plot(value.value, index, "o", color=SECOND if chosen else colour, markersize=5)
    axes.set_yticks(range(len(candidates)), [c.name for c in candidates], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("efficiency")


def _scored(result: SweepResult) -> list[Candidate]:
    """Return the candidates with an efficiency."""
    return [c for c in result.recommendation.candidates if c.efficiency.value is not None]


FIGURES = (
    FigureSpec(
        name="candidate-ranking",
        kind="sweep",
        title="Candidates",
        says="The efficiency of each candidate with its 95% interval by prompt group: 1 where its "
        "gradient is as good as an unbiased one without weights; how it was estimated stands below "
        "the table. Pale candidates break a constraint; the orange one is the choice: the simplest "
        "within one standard error of the best, and 5%.",
        draw=ranking,
        applies=lambda result: bool(_scored(result)),
    ),
)
