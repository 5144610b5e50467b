"""The figure of a mixture of experts: in which layers tokens took other experts."""

from __future__ import annotations

from rcdiag.formats import percent
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import ScoreResult
from rcdiag.results.routing import ExpertChanges


def rerouting(result: ScoreResult) -> ExpertChanges | None:
    """Return where the two policies used different experts; None if it is not recorded."""
    return None if result.routing is None else result.routing.rerouting


def chart(result: ScoreResult) -> Chart:
    """Return the share of rerouted tokens in each layer, with its interval."""
    changes = rerouting(result)
    layers = [] if changes is None else changes.rerouted_by_layer
    rows = [(number, layer.value, layer.low, layer.high) for number, layer in enumerate(layers)]
    return Chart(
        columns=("layer", "share of tokens", "low", "high"),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label="layer", whole=True),
                y=ChartAxis(label="share of tokens with other experts", percent=True, start=0.0),
                marks=[Mark(shape="dot", x="layer", y="share of tokens", low="low", high="high")],
            )
        ],
    )


def _adds(result: ScoreResult) -> str:
    """Say how many tokens used other experts in any layer."""
    changes = rerouting(result)
    if changes is None:
        return ""
    return f"{percent(changes.rerouted)} of the tokens took other experts in one layer or more."


FIGURES = (
    FigureSpec(
        name="experts-by-layer",
        kind="score",
        title="Where tokens took other experts",
        says="The share of tokens for which the two policies used different experts, by layer, "
        "with 95% intervals. Deeper layers have more if they only pass on what earlier ones "
        "changed; in a layer far above its neighbours the two sides compute the router "
        "differently.",
        chart=chart,
        applies=lambda result: rerouting(result) is not None,
        adds=_adds,
    ),
)
