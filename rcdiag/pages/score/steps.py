"""Figures of metrics of the mismatch over training steps, one for each metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import MetricValue, ScoreResult

SIZES = ("k3_kl", "ratio_outside_2")  # metrics that grow over decades when training collapses
DECADES_APART = 100.0
MOST_POINTS = 15  # steps with a dot each


def values_by_step(result: ScoreResult, metric: str) -> dict[int, MetricValue]:
    """Return a metric of every training step, the steps in order."""
    steps = sorted(result.steps, key=int)
    return {int(step): result.steps[step].mismatch[metric] for step in steps}


def changes(result: ScoreResult) -> list[int]:
    """Return the training steps from which on a cause shows."""
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    return sorted({cause.from_step for cause in causes if cause.from_step is not None})


def spans_decades(values: Iterable[MetricValue]) -> bool:
    """Tell whether values are all above 0 and so far apart that a linear axis shows the largest."""
    known = [value.value for value in values if value.value is not None]
    return bool(known) and min(known) > 0 and max(known) > DECADES_APART * min(known)


def step_chart(metric: str, label: str) -> Callable[[ScoreResult], Chart]:
    """Make the chart of a metric over training steps."""

    def chart(result: ScoreResult) -> Chart:
        steps = values_by_step(result, metric)
        log = metric in SIZES and spans_decades(steps.values())
        return Chart(
            columns=("step", metric, "low", "high"),
            rows=[(step, *with_ends(value)) for step, value in steps.items()],
            panels=[
                Panel(
                    x=ChartAxis(label="training step", whole=True),
                    y=ChartAxis(
                        label=label,
                        scale="log" if log else "linear",
                        start=None if log or metric == "kappa" else 0.0,
                        percent=metric == "ratio_outside_2",
                    ),
                    marks=[
                        Mark(
                            shape="line",
                            x="step",
                            y=metric,
                            low="low",
                            high="high",
                            points=len(steps) <= MOST_POINTS,
                        )
                    ],
                    rules=[
                        ReferenceLine(at=step, label=f"from step {step}")
                        for step in changes(result)
                    ],
                    height=0.62,
                )
            ],
        )

    return chart


def _adds(result: ScoreResult) -> str:
    named = [str(step) for step in changes(result)]
    return f"Dashed: the cause shows from step {' and '.join(named)} on." if named else ""


def _figure(name: str, title: str, metric: str, label: str, says: str) -> FigureSpec:
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=says,
        chart=step_chart(metric, label),
        applies=lambda result: bool(result.steps),
        adds=_adds,
    )


FIGURES = (
    _figure(
        "mismatch-by-step",
        "Mismatch by training step",
        "k3_kl",
        "KL by k3 (nats per token)",
        "A rise with the steps is drift or growing precision trouble, a jump is an event to look "
        "up in the log.",
    ),
    _figure(
        "tokens-beyond-2-by-step",
        "Tokens beyond a factor of 2 by training step",
        "ratio_outside_2",
        "share of tokens",
        "A few bad tokens show here before they move the mean.",
    ),
    _figure(
        "ess-by-step",
        "Effective sample size by training step",
        "ess_seq",
        "ESS of sequences (fraction)",
        "Weights of whole sequences leave this fraction of the batch; longer responses leave less.",
    ),
    _figure(
        "kappa-by-step",
        "Calibration index by training step",
        "kappa",
        "kappa",
        "Near 1 the recorded policy sampled; a fall is a step at which it did not.",
    ),
)
