"""Figures of the mismatch along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.results import MetricValue, ScoreResult


def by_step(result: ScoreResult, figure: Figure) -> None:
    """KL by k3 of each training step with its interval."""
    axes = figure.add_subplot()
    steps = sorted(result.steps, key=int)
    values = [result.steps[step].mismatch["k3_kl"] for step in steps]
    at = np.array([int(step) for step in steps])
    heights = np.array([value.value for value in values])
    known = [value.low is not None for value in values]
    low = np.array([v.value if v.low is None else v.low for v in values])
    high = np.array([v.value if v.high is None else v.high for v in values])
    axes.plot(at, heights, color=FIRST, marker="o", markersize=4, linewidth=1.4)
    if any(known):
        axes.fill_between(at, low, high, color=FIRST, alpha=0.2, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step")
    axes.set_ylabel("KL by k3 (nats per token)")


def _errors(values: list[MetricValue]) -> np.ndarray:
    """[2, bins] distances to the ends of the intervals, 0 where there is none."""
    return np.array(
        [
            [0.0 if v.low is None or v.value is None else v.value - v.low for v in values],
            [0.0 if v.high is None or v.value is None else v.high - v.value for v in values],
        ]
    )


def _heights(values: list[MetricValue]) -> list[float]:
    return [np.nan if value.value is None else value.value for value in values]


def profile(name: str, *others: str, line: str = "-") -> Callable[[ScoreResult, Figure], None]:
    """Two panels over the same bins: the size of the log-ratio, and its mean.

    `others` are profiles with the same bins, whose means are drawn beside it.
    """

    def draw(result: ScoreResult, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        found = result.profiles[name]
        order = [each.label for each in found.bins]
        at = np.arange(len(order))
        size = [each.log_ratio_rms for each in found.bins]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.2, "capsize": 2}
        upper.errorbar(at, _heights(size), _errors(size), color=FIRST, linestyle=line, **style)
        upper.margins(x=0.3 / len(order))
        upper.set_ylim(bottom=0)
        # Ticks that come and go with the height would need room that the layout did not leave.
        upper.locator_params(axis="y", nbins=5)
        lower.locator_params(axis="y", nbins=4)
        upper.set_ylabel("rms log-ratio (nats)")
        lower.axhline(0.0, color=INK, linewidth=0.8)
        dashes = (line, "--", ":")
        for index, each in enumerate((name, *others)):
            bins = [bin_ for bin_ in result.profiles[each].bins if bin_.label in order]
            means = [bin_.log_ratio_mean for bin_ in bins]
            where = [order.index(bin_.label) for bin_ in bins]
            errors = _errors(means) if index == 0 else None
            look = {**style, "linestyle": dashes[index], "color": SECOND if index == 0 else INK}
            label = each.removesuffix("_probability").replace("mean", "geometric mean")
            lower.errorbar(where, _heights(means), errors, label=label, **look)
        if others:
            place: dict[str, Any] = {"loc": "outside lower center", "ncols": 1 + len(others)}
            figure.legend(fontsize=8, frameon=False, title="binned by the probability of", **place)
        lower.set_ylabel("mean log-ratio")
        lower.set_xticks(at, order, rotation=40, ha="right", rotation_mode="anchor")
        unit = f" ({found.unit})" if found.unit else ""
        lower.set_xlabel("probability" if others else f"{found.title}{unit}")

    return draw
