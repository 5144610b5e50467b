"""The figure of how few tokens hold the KL: its Lorenz curve over tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.formats import percentage
from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.style import FIRST, INK
from rcdiag.results import ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 0.01  # the share of the tokens that the caption speaks of


def draw(result: ScoreResult, figure: Figure) -> None:
    """Draw the share of the KL, by k3, that the largest tokens hold."""
    axes = figure.add_subplot()
    tokens, held = zip(*result.figures["concentration"], strict=True)
    axes.plot(tokens, tokens, color=INK, linewidth=1.0, linestyle="--", label="all tokens alike")
    axes.plot(tokens, held, color=FIRST, label="here")
    axes.set_xscale("log")
    axes.xaxis.minorticks_off()
    axes.set_ylim(0, 1.03)
    axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel("share of tokens, the largest k3 first")
    axes.set_ylabel("share of KL (sum of k3)")


def chart(result: ScoreResult) -> Chart:
    """Return the same shares."""
    return Chart(
        form="curves",
        columns=("share of tokens", "share of KL", "alike"),
        rows=[(tokens, held, tokens) for tokens, held in result.figures["concentration"]],
        x=Axis(label="share of tokens, the largest k3 first", scale="log", percent=True),
        y=Axis(label="share of KL (sum of k3)", percent=True, start=0.0, end=1.0),
        series=(
            Series(label="here", y="share of KL", tone="first"),
            Series(label="all tokens alike", y="alike", tone="soft", dashed=True),
        ),
        options={"quiet": True},
    )


def _adds(result: ScoreResult) -> str:
    """Say how much the largest hundredth of the tokens holds."""
    held = [share for tokens, share in result.figures["concentration"] if tokens == TOP]
    if not held:
        return ""
    return f"{percentage(TOP)} of the tokens hold {percentage(held[0])} of the KL."


FIGURES = (
    FigureSpec(
        name="concentration",
        kind="score",
        title="How concentrated the mismatch is",
        says="The part of the KL, by k3 summed over all tokens, that the tokens with the largest "
        "k3 hold (a Lorenz curve). A curve far above the dashed line is a mismatch of few tokens: "
        "look at them below.",
        draw=draw,
        chart=chart,
        applies=lambda result: bool(result.figures.get("concentration")),
        adds=_adds,
    ),
)
