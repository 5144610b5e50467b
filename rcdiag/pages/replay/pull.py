"""Figures of the coefficients d loss / d log-prob by sequence and token, and of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import few_decades, histogram, panels
from rcdiag.pages.style import FIRST, INK, NARROW, SECOND
from rcdiag.results import PresetReplay, ReplayResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 6
LINES = ("-", "--", ":", "-.")


def distinct(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """Return the first preset of each set with the same coefficients."""
    first: dict[tuple[float, float], tuple[str, PresetReplay]] = {}
    # The update without correction comes first, so that a shared line has its name.
    for name, preset in sorted(result.presets.items(), key=lambda item: item[1].mode != "naive"):
        if preset.scatter:
            key = (round(preset.coefficients.norm, 12), round(preset.coefficients.sum, 12))
            first.setdefault(key, (name, preset))
    return list(first.values())


def weighted(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """Return the first preset of each set with the same weights on the same tokens; six at most."""
    first: dict[tuple[float, ...], tuple[str, PresetReplay]] = {}
    for name, preset in result.presets.items():
        if preset.weight_histogram is not None and preset.kept_tokens:
            first.setdefault(tuple(preset.weight_histogram["counts"]), (name, preset))
    return list(first.values())[:MOST_PANELS]


def sequence_shares(result: ReplayResult, figure: Figure) -> None:
    """Draw the cumulated share of the pull over sequences, the strongest first."""
    axes = figure.add_subplot()
    looks = cycle(product(LINES, (FIRST, SECOND)))
    for names, sums in _alike(result):
        line, shade = ("-", INK) if "naive" in names else next(looks)
        at = np.arange(1, len(sums) + 1)
        axes.plot(at, sums, color=shade, linestyle=line, linewidth=1.2, label=_title(names))
    columns = 1 if figure.get_figwidth() < NARROW else 2
    figure.legend(loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("sequences, strongest first")
    axes.set_ylabel("share of |coefficient|")


def _alike(result: ReplayResult) -> list[tuple[list[str], np.ndarray]]:
    """Return cumulated shares over sequences, with the names of all presets that share a line.

    Lines within 0.01 of each other count as one: they cannot be told apart in print.
    """
    groups: list[tuple[list[str], np.ndarray]] = []
    for name, preset in distinct(result):
        if preset.shares is None:
            continue
        sums = np.cumsum(preset.shares.sequences)
        near = (names for names, other in groups if _near(sums, other))
        names = next(near, None)
        if names is None:
            groups.append(([name], sums))
        else:
            names.append(name)
    return groups


def _title(names: Sequence[str]) -> str:
    """Name a line: no correction, or the first preset, and how many share it."""
    first = "no correction" if "naive" in names else names[0]
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    return len(one) == len(other) and bool(np.all(np.abs(one - other) < 0.01))


def shares_chart(result: ReplayResult) -> Chart:
    """Return the chart of the same shares; presets whose lines coincide share one."""
    tones: tuple[Tone, ...] = ("first", "second", "soft")
    looks = cycle(product((False, True), tones))
    no_correction: tuple[bool, Tone] = (False, "ink")
    series, rows = [], []
    for names, sums in _alike(result):
        dashed, tone = no_correction if "naive" in names else next(looks)
        name = _title(names)
        series.append(
            Series(label=name, y="share", group="preset", only=name, tone=tone, dashed=dashed)
        )
        rows += [
            (name, place, float(total))
            for place, total in enumerate(sums, 1)
            if place <= 10 or place % 5 == 0 or place == len(sums)
        ]
    return Chart(
        form="curves",
        columns=("preset", "sequences", "share"),
        rows=rows,
        x=Axis(label="sequences, strongest first", scale="log"),
        y=Axis(label="share of summed |coefficient|", percent=True, start=0.0, end=1.0),
        series=tuple(series),
    )


def weights(result: ReplayResult, figure: Figure) -> None:
    """Draw tokens by their weight in the loss, one panel for each distinct preset with weights."""
    presets = weighted(result)
    for axes, (name, preset) in zip(
        panels(figure, len(presets), sharex=True), presets, strict=True
    ):
        assert preset.weight_histogram is not None
        edges, counts = (
            np.array(preset.weight_histogram["edges"]),
            np.array(preset.weight_histogram["counts"]),
        )
        histogram(axes, 10.0**edges, counts)
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_title(name, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("weight", fontsize=8)


def coefficients(result: ReplayResult, figure: Figure) -> None:
    """Draw the coefficient's size over the token's probability, by sign of the advantage."""
    presets = distinct(result)[:MOST_PANELS]
    all_axes = panels(figure, len(presets), sharey=True)
    for axes, (name, preset) in zip(all_axes, presets, strict=True):
        points = np.array(preset.scatter, dtype=float).reshape(-1, 3)
        for sign, colour in ((1.0, FIRST), (-1.0, SECOND)):
            some = points[points[:, 1] * sign > 0]
            axes.scatter(
                -some[:, 0],
                np.abs(some[:, 2]),
                s=4,
                color=colour,
                alpha=0.4,
                linewidths=0,
                rasterized=True,
            )
        axes.set_xscale("symlog", linthresh=1e-3)
        axes.set_yscale("log")
        axes.set_title(name, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("−log-prob (nats)", fontsize=8)
    few_decades(all_axes[0])
    all_axes[0].set_ylabel("|coefficient|", fontsize=8)


def _size(count: int) -> tuple[float, float]:
    """Return a figure size with room for `count` panels, three in a row."""
    return (5.4, 4.4) if count == 1 else (11.0, 3.4 * (-(-count // 3)))


FIGURES = (
    FigureSpec(
        name="gradient-shares",
        kind="replay",
        title="Who gets the gradient",
        says="Sequences by their share of the summed |d loss / d log-prob|. Presets whose lines "
        "differ by less than a hundredth share one; the update without correction has the colour "
        "of the text. A line that starts high is an update by few sequences.",
        draw=sequence_shares,
        size=lambda result: (5.4, 4.8),
        chart=shares_chart,
        applies=lambda result: any(preset.shares for preset in result.presets.values()),
    ),
    FigureSpec(
        name="loss-weights",
        kind="replay",
        title="Weights in the loss",
        says="Kept tokens by their importance weight, both axes logarithmic; weights of 0 stand "
        "at the left edge. A wall on the right is truncation. Presets with the same weights share "
        "a panel; there are six panels at most.",
        draw=weights,
        on_page=False,
        applies=lambda result: bool(weighted(result)),
        size=lambda result: _size(len(weighted(result))),
    ),
    FigureSpec(
        name="token-coefficients",
        kind="replay",
        title="Pull on single tokens",
        says="A dot is a token: how unlikely it is, and how hard the loss pulls at it; blue where "
        "the advantage is above 0, orange below. Presets with the same pull share a panel; there "
        "are six panels at most.",
        draw=coefficients,
        on_page=False,
        applies=lambda result: bool(distinct(result)),
        size=lambda result: _size(min(len(distinct(result)), MOST_PANELS)),
    ),
)
