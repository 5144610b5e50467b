"""The figure of how few tokens hold most of the KL: its Lorenz curve over tokens."""

from __future__ import annotations

from rcdiag.formats import percentage
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import ScoreResult

TOP = 0.01  # the share of tokens that the caption is about


def chart(result: ScoreResult) -> Chart:
    """Return the share of the KL, by k3, that the tokens with the largest k3 hold."""
    return Chart(
        columns=("share of tokens", "share of KL", "alike"),
        rows=[(tokens, held, tokens) for tokens, held in result.figures["concentration"]],
        panels=[
            Panel(
                x=ChartAxis(
                    label="share of tokens, the largest k3 first", scale="log", percent=True
                ),
                y=ChartAxis(label="share of KL (sum of k3)", percent=True, start=0.0, end=1.0),
                marks=[
                    Mark(shape="line", x="share of tokens", y="share of KL", label="here"),
                    Mark(
                        shape="line",
                        x="share of tokens",
                        y="alike",
                        label="all tokens alike",
                        tone="soft",
                        dashed=True,
                    ),
                ],
            )
        ],
    )


def _adds(result: ScoreResult) -> str:
    """Say how much of the KL the largest 1% of the tokens hold."""
    held = [share for tokens, share in result.figures["concentration"] if tokens == TOP]
    if not held:
        return ""
    return f"{percentage(TOP)} of the tokens hold {percentage(held[0])} of the KL."


FIGURES = (
    FigureSpec(
        name="concentration",
        kind="score",
        title="How concentrated the mismatch is",
        says="The share of the KL, by k3 summed over all tokens, that the tokens with the largest "
        "k3 hold (a Lorenz curve). If the curve is far above the dashed line, few tokens make up "
        "the mismatch: look at them below.",
        chart=chart,
        applies=lambda result: bool(result.figures.get("concentration")),
        adds=_adds,
    ),
)
