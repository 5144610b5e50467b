"""A figure shows both factors of the ratio: sampler to trainer, trainer to current policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import histogram, reach
from rcdiag.pages.style import SECOND
from rcdiag.results import ReplayResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def factors(result: ReplayResult, figure: Figure) -> None:
    """Draw the log-ratios of both factors and of their product."""
    panels = figure.subplots(len(result.factors), 1, sharex=True)
    largest = 1e-3
    for axes, (name, factor) in zip(panels, result.factors.items(), strict=True):
        edges = np.array(factor.log_ratio_histogram["edges"])
        counts = np.array(factor.log_ratio_histogram["counts"])
        largest = max(largest, reach(edges, counts))
        histogram(axes, edges, counts)
        axes.set_ylabel("tokens", fontsize=8)
        axes.set_title(f"{name}: {factor.behavior} → {factor.target}", fontsize=9, loc="right")
        if name == "staleness":
            _clip_range(result, axes)
    panels[-1].set_xscale("symlog", linthresh=1e-4, linscale=0.5)
    panels[-1].set_xlim(-1.3 * largest, 1.3 * largest)
    ticks = [at for at in (1e-3, 1e-1, 10.0) if at <= 1.3 * largest]
    panels[-1].set_xticks([*(-at for at in reversed(ticks)), 0.0, *ticks])
    panels[-1].set_xlabel("log-ratio (nats)")


def _clip_range(result: ReplayResult, axes: Axes) -> None:
    for bound in (1.0 - result.clip_low, 1.0 + result.clip_high):
        if bound > 0:
            axes.axvline(np.log(bound), color=SECOND, linewidth=1.0, linestyle="--")


FIGURES = (
    FigureSpec(
        name="ratio-factors",
        kind="replay",
        title="The two factors of the ratio",
        says="Sampler to trainer is mismatch, trainer to current policy is staleness; bypass takes "
        "their product. Dashed lines are the clip range of PPO.",
        draw=factors,
    ),
)
