"""These figures show estimator families: each over its bounds, and the best of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import shades
from rcdiag.pages.style import FIRST, INK, SECOND, STYLE
from rcdiag.results import SweepFamily, SweepResult, SweepRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAN = float("nan")
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Slider:
    """One bound of a family, and the values that it takes."""

    key: str
    values: list[float]

    @property
    def texts(self) -> list[str]:
        """Return the values as the page writes them."""
        return [f"{value:.9g}" for value in self.values]


def sliders(family: SweepFamily) -> list[Slider]:
    """Make a slider for every bound that varies by itself; a window that moves as one has one."""
    free: list[Slider] = []
    for key in sorted(family.rows[0].bounds, key=lambda key: key != family.axis):
        values = sorted({row.bounds[key] for row in family.rows})
        if len(values) > 1 and not any(_tied(family, key, other.key) for other in free):
            free.append(Slider(key, values))
    return free or [Slider(family.axis, [family.rows[0].bounds[family.axis]])]


def _tied(family: SweepFamily, key: str, other: str) -> bool:
    """Tell whether one bound follows from the other."""
    pairs = {(row.bounds[key], row.bounds[other]) for row in family.rows}
    return len(pairs) == len({second for _, second in pairs})


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker of a family's figure: the axes it moves in, and its place in each row (data)."""

    axes: Axes
    places: Points


def family_figure(family: SweepFamily) -> tuple[Figure, list[Marker]]:
    """Draw curves or a map over the bounds, and the trade-off; return the markers' places."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    keys = sliders(family)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        markers = _curves(left, family, keys[0]) if len(keys) == 1 else [_heat(left, family, keys)]
        return figure, [*markers, _trade_off(right, family)]


def _curves(axes: Axes, family: SweepFamily, slider: Slider) -> list[Marker]:
    """Draw kept tokens, ESS and bias over the only bound, with a marker on each curve."""
    at = np.array([row.bounds[slider.key] for row in family.rows])
    bias = np.array([_bias(row) for row in family.rows])
    kept = np.array([_kept(row) for row in family.rows])
    ess = np.array([_ess(row) for row in family.rows])
    axes.plot(at, kept, color=FIRST, linewidth=1.4, label="kept tokens")
    axes.plot(at, ess, color=SECOND, linewidth=1.4, label="ESS sequences")
    axes.plot(at, bias, color=INK, linestyle="--", linewidth=1.4, label="bias")
    axes.set_xscale("log")
    axes.set_ylim(-0.03, max(1.03, 1.03 * float(np.nanmax(bias, initial=1.0))))
    axes.set_xlabel(f"{slider.key} bound")
    axes.legend(fontsize=7, frameon=False, loc="best")
    return [Marker(axes, list(zip(at, values, strict=True))) for values in (kept, ess, bias)]


def _heat(axes: Axes, family: SweepFamily, keys: Sequence[Slider]) -> Marker:
    """Draw the ESS of sequences over two bounds, with a marker on the cell."""
    across, up = keys[0], keys[1]
    values = np.full((len(up.values), len(across.values)), NAN)
    cells = [
        (across.values.index(row.bounds[across.key]), up.values.index(row.bounds[up.key]))
        for row in family.rows
    ]
    for (x, y), row in zip(cells, family.rows, strict=True):
        values[y, x] = _ess(row)
    axes.pcolormesh(values, cmap=shades(FIRST + "0c", FIRST), vmin=0.0, vmax=1.0, rasterized=True)
    for axis, slider in ((axes.xaxis, across), (axes.yaxis, up)):
        some = range(0, len(slider.values), -(-len(slider.values) // 6))
        axis.set_ticks([index + 0.5 for index in some], [slider.texts[index] for index in some])
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", rotation=40)
    axes.grid(False)
    axes.set_xlabel(across.key)
    axes.set_ylabel(up.key)
    axes.set_title("ESS of sequences", fontsize=8, loc="left")
    return Marker(axes, [(x + 0.5, y + 0.5) for x, y in cells])


def _trade_off(axes: Axes, family: SweepFamily) -> Marker:
    """Draw ESS against bias, a dot for every setting, with a marker on the dot."""
    points = [(_bias(row), _ess(row)) for row in family.rows]
    x, y = zip(*points, strict=True)
    axes.scatter(x, y, s=5, color=FIRST, linewidths=0, rasterized=True)
    axes.set_xlim(left=-0.02)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("bias: E|ratio − weight|")
    axes.set_ylabel("ESS of sequences")
    return Marker(axes, points)


def _bias(row: SweepRow) -> float:
    return NAN if row.weight_distance is None else row.weight_distance


def _ess(row: SweepRow) -> float:
    return NAN if row.ess_seq_applied.value is None else row.ess_seq_applied.value


def _kept(row: SweepRow) -> float:
    return NAN if row.kept_token_share.value is None else row.kept_token_share.value


COLOURS = {"token": FIRST, "sequence": SECOND, "geometric": INK}  # by what the bounds hold


def trade_offs(result: SweepResult, figure: Figure) -> None:
    """Draw the best settings of every family: ESS against bias."""
    axes = figure.add_subplot()
    for family in result.families.values():
        x, y = zip(*_front([(_bias(row), _ess(row)) for row in family.rows]), strict=True)
        axes.plot(x, y, color=COLOURS[family.scope], linewidth=1.0, alpha=0.7)
    for index, (level, colour) in enumerate(COLOURS.items()):
        place: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": 9, "ha": "right"}
        axes.annotate(f"bounds on {level}", (0.98, 0.18 - 0.06 * index), color=colour, **place)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("bias: E|ratio − weight|")
    axes.set_ylabel("ESS of sequences")


def _front(points: Points) -> Points:
    """Return the points that no other betters in both."""
    front: Points = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not np.isnan(y) and (not front or y > front[-1][1]):
            front.append((x, y))
    return front or [(NAN, NAN)]


FIGURES = (
    FigureSpec(
        name="ess-against-bias",
        kind="sweep",
        title="Variance against bias",
        says="A line is a family over its bounds: how far its weights are from the ratios of "
        "whole sequences, E|ratio - weight|, and the effective sample size that this buys. Up and "
        "left is better; weights by token are far from the ratios of long sequences at any bound.",
        draw=trade_offs,
        applies=lambda result: result.recommendation.answer != "fix-the-cause",
    ),
)
