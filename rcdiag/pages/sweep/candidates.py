"""The figure of the candidates that the recommendation chooses from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.pages.charts import Axis, Chart, Series
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


def ranking_chart(result: SweepResult) -> Chart:
    """Return the efficiency of each candidate with its interval, and why it is refused."""
    order = sorted(_scored(result), key=lambda c: (bool(c.refused), -(c.efficiency.value or 0.0)))
    return Chart(
        form="dots",
        columns=("candidate", "efficiency", "low", "high", "note"),
        rows=[
            (
                candidate.name,
                candidate.efficiency.value,
                candidate.efficiency.low,
                candidate.efficiency.high,
                _note(candidate, result.recommendation.choice),
            )
            for candidate in order
        ],
        x=Axis(label="efficiency", start=0.0),
        series=(Series(label="efficiency", y="efficiency", low="low", high="high"),),
        options={
            "emphasis": result.recommendation.choice or "",
            "pale": [candidate.name for candidate in order if candidate.refused],
            "opens": "correction",
        },
    )


def _note(candidate: Candidate, choice: str | None) -> str:
    if candidate.name == choice:
        return "recommended"
    return f"refused: {candidate.refused[0]}" if candidate.refused else ""


FIGURES = (
    FigureSpec(
        name="candidate-ranking",
        kind="sweep",
        title="Candidates",
        says="The efficiency of each candidate with its 95% interval by prompt group: 1 where its "
        "gradient is as good as an unbiased one without weights; the method stands below. Pale "
        "candidates break a constraint; the one that stands out is recommended: the simplest "
        "within one standard error of the best, and 5%.",
        draw=ranking,
        chart=ranking_chart,
        applies=lambda result: bool(_scored(result)),
    ),
)
