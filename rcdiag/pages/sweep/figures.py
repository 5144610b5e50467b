"""Figures of a sweep: one for every family with the places of its marker, and three in all.

Figures of `rcdiag sweep`, besides those of its families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from rcdiag.pages.style import FIRST, INK, SECOND, STYLE, FigureSpec
from rcdiag.pages.svg import to_svg
from rcdiag.results import SweepFamily, SweepResult, SweepRow

NAN = float("nan")
Marked = list[tuple[Axes, list[tuple[float, float]]]]  # of each marker: its place in each row
MARKER = (
    '<circle class="marker" r="5" fill="none" stroke="var(--ink)" stroke-width="2" '
    'visibility="hidden"/>'
)


@dataclass(frozen=True, slots=True)
class Slider:
    """One bound of a family, and the values that it takes."""

    key: str
    values: list[float]

    @property
    def texts(self) -> list[str]:
        return [f"{value:.9g}" for value in self.values]


def sliders(family: SweepFamily) -> list[Slider]:
    """One for every bound that varies by itself; a window that moves as one has one."""
    keys = list(family.rows[0].bounds)
    found: list[Slider] = []
    for key in sorted(keys, key=lambda key: key != family.axis):
        values = sorted({row.bounds[key] for row in family.rows})
        if len(values) > 1 and not any(_tied(family, key, other.key) for other in found):
            found.append(Slider(key, values))
    return found or [Slider(family.axis, [family.rows[0].bounds[family.axis]])]


def _tied(family: SweepFamily, key: str, other: str) -> bool:
    """Whether one bound follows from the other."""
    pairs = {(row.bounds[key], row.bounds[other]) for row in family.rows}
    return len(pairs) == len({second for _, second in pairs})


def _bias(row: SweepRow) -> float:
    return NAN if row.bias is None else row.bias


def _ess(row: SweepRow) -> float:
    return NAN if row.ess_seq.value is None else row.ess_seq.value


def family_figure(family: SweepFamily, keys: Sequence[Slider]) -> tuple[Figure, Marked]:
    """Curves or a map over the bounds, and the trade-off; with the points of every row."""
    figure = Figure(figsize=(5.6, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    marked = _curves(left, family, keys[0]) if len(keys) == 1 else _heat(left, family, keys)
    marked.append((right, _trade_off(right, family)))
    return figure, marked


def family_svg(name: str, family: SweepFamily, keys: Sequence[Slider]) -> tuple[str, list[str]]:
    """The figure of a family, and where its markers stand in each row."""
    with mpl.rc_context(STYLE):
        figure, marked = family_figure(family, keys)
        FigureCanvasAgg(figure).draw()  # now the layout stands
        places = [_in_svg(figure, axes, points) for axes, points in marked]
        svg = to_svg(figure, f"family-{name}")
    svg = svg.replace("</svg>", MARKER * len(places) + "</svg>")
    dots = [" ".join(f"{x:.1f} {y:.1f}" for x, y in row) for row in zip(*places, strict=True)]
    return svg, dots


def _in_svg(
    figure: Figure, axes: Axes, points: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Data as SVG user units: points, from the top."""
    height = figure.get_figheight() * 72.0
    pixels = axes.transData.transform(np.array(points, dtype=float)) * 72.0 / figure.dpi
    return [(float(x), height - float(y)) for x, y in pixels]


def _curves(axes: Axes, family: SweepFamily, key: Slider) -> Marked:
    at = np.array([row.bounds[key.key] for row in family.rows])
    lines = {
        "kept tokens": (np.array([_share(row) for row in family.rows]), FIRST, "-"),
        "ESS sequences": (np.array([_ess(row) for row in family.rows]), SECOND, "-"),
        "bias": (np.array([_bias(row) for row in family.rows]), INK, "--"),
    }
    for label, (values, colour, style) in lines.items():
        axes.plot(at, values, color=colour, linestyle=style, linewidth=1.4, label=label)
    axes.set_xscale("log")
    axes.set_ylim(-0.03, max(1.03, 1.03 * float(np.nanmax(lines["bias"][0], initial=1.0))))
    axes.set_xlabel(f"{key.key} bound")
    axes.legend(fontsize=7, frameon=False, loc="best")
    return [(axes, list(zip(at, values, strict=True))) for values, _, _ in lines.values()]


def _share(row: SweepRow) -> float:
    return NAN if row.kept_token_share.value is None else row.kept_token_share.value


def _heat(axes: Axes, family: SweepFamily, keys: Sequence[Slider]) -> Marked:
    """ESS of sequences over two bounds."""
    across, up = keys[0], keys[1]
    values = np.full((len(up.values), len(across.values)), NAN)
    cells = [
        (across.values.index(row.bounds[across.key]), up.values.index(row.bounds[up.key]))
        for row in family.rows
    ]
    for (x, y), row in zip(cells, family.rows, strict=True):
        values[y, x] = _ess(row)
    colours = LinearSegmentedColormap.from_list("ess", [FIRST + "0c", FIRST])
    axes.pcolormesh(values, cmap=colours, vmin=0.0, vmax=1.0, rasterized=True)
    for axis, slider in ((axes.xaxis, across), (axes.yaxis, up)):
        some = range(0, len(slider.values), -(-len(slider.values) // 6))
        axis.set_ticks([index + 0.5 for index in some], [slider.texts[index] for index in some])
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", rotation=40)
    axes.grid(False)
    axes.set_xlabel(across.key)
    axes.set_ylabel(up.key)
    axes.set_title("ESS of sequences", fontsize=8, loc="left")
    return [(axes, [(x + 0.5, y + 0.5) for x, y in cells])]


def _trade_off(axes: Axes, family: SweepFamily) -> list[tuple[float, float]]:
    points = [(_bias(row), _ess(row)) for row in family.rows]
    x, y = zip(*points, strict=True)
    axes.scatter(x, y, s=5, color=FIRST, linewidths=0, rasterized=True)
    axes.set_xlim(left=-0.02)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("bias: E|ratio − weight|")
    axes.set_ylabel("ESS of sequences")
    return points


COLOURS = {"token": FIRST, "sequence": SECOND, "geometric": INK}


def trade_offs(result: SweepResult, figure: Figure) -> None:
    """The best settings of every family: ESS against bias."""
    axes = figure.add_subplot()
    for family in result.families.values():
        front = _front([(_bias(row), _ess(row)) for row in family.rows])
        x, y = zip(*front, strict=True)
        axes.plot(x, y, color=COLOURS[family.level], linewidth=1.0, alpha=0.7)
    for index, (level, colour) in enumerate(COLOURS.items()):
        place: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": 9, "ha": "right"}
        axes.annotate(f"bounds on {level}", (0.98, 0.18 - 0.06 * index), color=colour, **place)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("bias: E|ratio − weight|")
    axes.set_ylabel("ESS of sequences")


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other betters in both."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not np.isnan(y) and (not found or y > found[-1][1]):
            found.append((x, y))
    return found or [(NAN, NAN)]


def ranking(result: SweepResult, figure: Figure) -> None:
    """Efficiency of each candidate with its interval."""
    axes = figure.add_subplot()
    candidates = [
        each for each in result.recommendation.candidates if each.efficiency.value is not None
    ]
    candidates.sort(key=lambda each: -(each.efficiency.value or 0.0))
    for index, each in enumerate(candidates):
        value = each.efficiency
        assert value.value is not None
        colour = INK + "80" if each.refused else FIRST
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [index, index], color=colour, linewidth=1.6)
        chosen = each.name == result.recommendation.choice
        axes.plot(value.value, index, "o", color=SECOND if chosen else colour, markersize=5)
    axes.set_yticks(range(len(candidates)), [each.name for each in candidates], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("efficiency")


def forecast(result: SweepResult, figure: Figure) -> None:
    """Acceptance and ESS against length."""
    axes = figure.add_subplot()
    points = result.forecast.points
    at = [point.length for point in points]
    seq, geo = (
        " to ".join(f"{bound:g}" for bound in bounds)
        for bounds in (result.forecast.seq_bounds, result.forecast.geo_bounds)
    )
    axes.plot(at, [p.ess_seq for p in points], color=FIRST, label="ESS of sequences")
    axes.plot(at, [p.accepted_seq for p in points], color=SECOND, label=f"kept, ratio within {seq}")
    axes.plot(
        at,
        [p.accepted_geo for p in points],
        color=INK,
        linestyle="--",
        label=f"kept, geometric within {geo}",
    )
    for bin_ in result.forecast.held_out:
        for value, colour, fill in ((bin_.seen_seq, SECOND, "full"), (bin_.seen_geo, INK, "none")):
            seen = NAN if value.value is None else value.value
            axes.plot(bin_.length, seen, "o", color=colour, markersize=4, fillstyle=fill)
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("response length (tokens)")
    axes.legend(fontsize=8, frameon=False)


FIGURES_OF_SWEEP: dict[str, FigureSpec] = {
    "ranking": FigureSpec(
        "Candidates",
        "Expected progress of one step of the best length, relative to a step without noise or "
        "bias, with 95% intervals by prompt group. Pale ones break a constraint; the orange one "
        "is the choice. Where intervals overlap the simpler one wins.",
        ranking,
        lambda result: any(
            each.efficiency.value is not None for each in result.recommendation.candidates
        ),
    ),
    "trade-off": FigureSpec(
        "Variance against bias",
        "A line is a family over its bounds: how far its weights are from the ratios of whole "
        "sequences, E|ratio - weight|, and the effective sample size that this buys. Up and left "
        "is better; weights by token are far from the ratios of long sequences at any bound.",
        trade_offs,
    ),
    "forecast": FigureSpec(
        "Longer responses",
        "By the law of single tokens. Dots are what was seen in bins of length that the law was "
        "not fitted on: far from the lines the forecast cannot be trusted.",
        forecast,
        lambda result: bool(result.forecast.points),
    ),
}
