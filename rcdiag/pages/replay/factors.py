"""A figure shows both factors of the ratio: sampler to trainer, trainer to current policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Mark, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.replay.words import FACTORS, factor_name
from rcdiag.pages.score.exceedance import shares_beyond
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
        if factor.log_ratio_abs_max:
            histogram(axes, edges, counts)
            axes.set_ylabel("tokens", fontsize=8)
        else:
            middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(0.5, 0.5, "all tokens agree", transform=axes.transAxes, **middle)
            axes.set_yticks([])
        axes.set_title(factor_name(name, factor), fontsize=9, loc="right")
        if name == "staleness" and factor.log_ratio_abs_max:
            _clip_range(result, axes)
    panels[-1].set_xscale("symlog", linthresh=1e-4, linscale=0.5)
    panels[-1].set_xlim(-1.3 * largest, 1.3 * largest)
    ticks = [at for at in (1e-3, 1e-1, 10.0) if at <= 1.3 * largest]
    panels[-1].set_xticks([*(-at for at in reversed(ticks)), 0.0, *ticks])
    panels[-1].set_xlabel("log-ratio (nats)")


def factors_chart(result: ReplayResult) -> Chart:
    """Return for each factor the share of tokens whose log-ratio is beyond a size."""
    beyond = {
        name: shares_beyond(factor.log_ratio_histogram)
        for name, factor in result.factors.items()
        if name != "product"
    }
    sizes = max(([at for at, *_ in rows] for rows in beyond.values()), key=len, default=[])
    shares = {
        name: [(above + below) or None for _, above, below in rows] for name, rows in beyond.items()
    }
    clips = {abs(float(np.log(1.0 + result.clip_high)))} if result.clip_high > 0 else set()
    return Chart(
        form="curves",
        columns=("|log-ratio|", *(FACTORS.get(name, name) for name in shares)),
        rows=[
            (size, *(row[place] if place < len(row) else None for row in shares.values()))
            for place, size in enumerate(sizes)
        ],
        x=Axis(label="|log-ratio| (nats)", scale="log"),
        y=Axis(label="share of tokens beyond", scale="log", percent=True),
        series=[
            Series(
                label=factor_name(name, result.factors[name]),
                y=FACTORS.get(name, name),
                tone="first" if name == "mismatch" else "second",
            )
            for name in shares
        ],
        marks=[Mark(at=at, label=f"clip {1.0 + result.clip_high:g}") for at in clips],
    )


def _adds(result: ReplayResult) -> str:
    """Name the factors in which no token differs: they have no line."""
    still = [
        FACTORS.get(name, name)
        for name, factor in result.factors.items()
        if name != "product" and not factor.log_ratio_abs_max
    ]
    return f"All tokens agree in: {', '.join(still)}; without a line." if still else ""


def _clip_range(result: ReplayResult, axes: Axes) -> None:
    for bound in (1.0 - result.clip_low, 1.0 + result.clip_high):
        if bound > 0:
            axes.axvline(np.log(bound), color=SECOND, linewidth=1.0, linestyle="--")


FIGURES = (
    FigureSpec(
        name="ratio-factors",
        kind="replay",
        title="The two factors of the ratio",
        says="Decoupled presets weight by the first factor, sampler to trainer, and clip the "
        "second, the drift within the update; bypass takes their product. Dashed lines are the "
        "clip range of PPO.",
        draw=factors,
        chart=factors_chart,
        adds=_adds,
    ),
)
