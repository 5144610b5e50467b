"""A figure shows the mismatch over training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import ends, heights
from rcdiag.pages.style import FIRST
from rcdiag.results import ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_step(result: ScoreResult, figure: Figure) -> None:
    """Draw KL by k3 of each training step with its interval."""
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    steps = sorted(result.steps, key=int)
    values = [result.steps[step].mismatch["k3_kl"] for step in steps]
    at = np.array([int(step) for step in steps])
    axes.plot(at, heights(values), color=FIRST, marker="o", markersize=4, linewidth=1.4)
    if any(value.low is not None for value in values):
        axes.fill_between(at, *ends(values), color=FIRST, alpha=0.2, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step")
    axes.set_ylabel("KL by k3 (nats per token)")


FIGURES = (
    FigureSpec(
        name="mismatch-by-step",
        kind="score",
        title="Mismatch by training step",
        says="The band is the 95% interval over prompt groups. A rise with the steps is drift or "
        "growing precision trouble, a jump is an event to look up in the log.",
        draw=by_step,
        applies=lambda result: bool(result.steps),
    ),
)
