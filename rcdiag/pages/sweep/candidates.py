"""The figure of the candidates that the recommendation chooses from."""

from __future__ import annotations

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import SweepResult
from rcdiag.results.sweep import Candidate


def _scored(result: SweepResult) -> list[Candidate]:
    """Return the candidates that have an efficiency."""
    return [c for c in result.recommendation.candidates if c.efficiency.value is not None]


def ranking(result: SweepResult) -> Chart:
    """Return the efficiency of each candidate with its interval, and why it is refused."""
    order = sorted(_scored(result), key=lambda c: (bool(c.refused), -(c.efficiency.value or 0.0)))
    choice = result.recommendation.choice or ""
    notes = {one.name: f"refused: {one.refused[0]}" for one in order if one.refused}
    notes[choice] = "recommended"
    return Chart(
        columns=("candidate", "efficiency", "low", "high", "note"),
        rows=[(one.name, *with_ends(one.efficiency), notes.get(one.name, "")) for one in order],
        panels=[
            Panel(
                x=ChartAxis(label="efficiency", start=0.0),
                y=ChartAxis(scale="names", names=[candidate.name for candidate in order]),
                marks=[Mark(shape="dot", x="efficiency", y="candidate", low="low", high="high")],
            )
        ],
        strong=choice,
        pale=[candidate.name for candidate in order if candidate.refused],
        opens="correction",
    )


FIGURES = (
    FigureSpec(
        name="candidate-ranking",
        kind="sweep",
        title="Candidates",
        says="The efficiency of each candidate with its 95% interval by prompt group: 1 if its "
        "gradient is as good as an unbiased one without weights; the method is described below. "
        "Pale candidates violate a constraint. A highlighted one is recommended: the simplest "
        "within one standard error of the best, and 5%.",
        chart=ranking,
        applies=lambda result: bool(_scored(result)),
    ),
)
