"""Figures of estimator families: each over its bounds, and the best settings of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import ends, shades
from rcdiag.pages.style import FIRST, INK, SECOND, own_style
from rcdiag.results import SweepFamily, SweepResult, SweepRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAN = float("nan")
Points = list[tuple[float, float]]


def free_bounds(family: SweepFamily) -> dict[str, list[float]]:
    """Return the bounds that vary independently, with their values.

    A window whose two ends move together has one. The first bound is that by which rows are
    ordered.
    """
    free: dict[str, list[float]] = {}
    for key in sorted(family.rows[0].bounds, key=lambda key: key != family.axis):
        values = sorted({row.bounds[key] for row in family.rows})
        if len(values) > 1 and not any(_tied(family, key, other) for other in free):
            free[key] = values
    return free or {family.axis: [family.rows[0].bounds[family.axis]]}


def _tied(family: SweepFamily, key: str, other: str) -> bool:
    """Tell whether one bound follows from the other."""
    pairs = {(row.bounds[key], row.bounds[other]) for row in family.rows}
    return len(pairs) == len({second for _, second in pairs})


def chosen_bounds(result: SweepResult, family: str) -> Mapping[str, float] | None:
    """Return the bounds that a sweep recommends, where they are those of a family."""
    advice = result.recommendation
    chosen = (one for one in advice.candidates if one.name == advice.choice)
    return next((one.bounds for one in chosen if one.family == family), None)


def family_figure(
    family: SweepFamily, width: float | None = None, chosen: Mapping[str, float] | None = None
) -> Figure:
    """Draw curves or a map over the bounds, and the trade-off between bias and variance.

    `chosen` are the recommended bounds, which are marked.
    """
    free = free_bounds(family)
    with own_style():
        from matplotlib.figure import Figure

        from rcdiag.pages.print_figures import fit_column

        wide = 5.6 if width is None else width
        figure = Figure(figsize=(wide, max(wide * 0.52, 1.9)), layout="constrained")
        left, right = figure.subplots(1, 2)
        if len(free) == 1:
            _curves(left, family, next(iter(free)), chosen)
            # The legend stands above both panels: curves run through every corner.
            figure.legend(loc="outside upper left", ncols=3, fontsize=7, frameon=False)
        else:
            _heat(left, family, free, chosen)
        _trade_off(right, family, chosen)
        fit_column(figure, wide)
        return figure


def _curves(axes: Axes, family: SweepFamily, key: str, chosen: Mapping[str, float] | None) -> None:
    """Draw kept tokens, ESS with its 95% interval and bias over the only bound."""
    at = np.array([row.bounds[key] for row in family.rows])
    bias = np.array([_bias(row) for row in family.rows])
    axes.plot(at, [_kept(row) for row in family.rows], color=FIRST, label="kept tokens")
    axes.plot(at, [_ess(row) for row in family.rows], color=SECOND, label="ESS sequences")
    low, high = ends([row.ess_seq_applied for row in family.rows])
    axes.fill_between(at, low, high, color=SECOND, alpha=0.18, linewidth=0)
    axes.plot(at, bias, color=INK, linestyle="--", label="bias")
    if chosen is not None:
        axes.axvline(chosen[key], color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            "recommended", (chosen[key], 0.02), rotation=90, fontsize=7, ha="right", va="bottom"
        )
    axes.set_xscale("log")
    axes.set_ylim(-0.03, max(1.03, 1.03 * float(np.nanmax(bias, initial=1.0))))
    axes.set_xlabel(f"{key} bound")


def _heat(
    axes: Axes,
    family: SweepFamily,
    free: Mapping[str, list[float]],
    chosen: Mapping[str, float] | None,
) -> None:
    """Draw the ESS of sequences over two bounds, with a ring at the recommended ones."""
    (across, columns), (up, rows) = list(free.items())[:2]
    values = np.full((len(rows), len(columns)), NAN)
    for row in family.rows:
        values[rows.index(row.bounds[up]), columns.index(row.bounds[across])] = _ess(row)
    axes.pcolormesh(values, cmap=shades(FIRST + "0c", FIRST), vmin=0.0, vmax=1.0, rasterized=True)
    for axis, places in ((axes.xaxis, columns), (axes.yaxis, rows)):
        some = range(0, len(places), -(-len(places) // 6))
        axis.set_ticks([index + 0.5 for index in some], [f"{places[index]:.9g}" for index in some])
    if chosen is not None:
        place = (columns.index(chosen[across]) + 0.5, rows.index(chosen[up]) + 0.5)
        axes.plot(*place, "o", color=INK, markersize=7, fillstyle="none")
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="x", rotation=40)
    axes.grid(False)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title("ESS of sequences", fontsize=8, loc="left")


def _trade_off(axes: Axes, family: SweepFamily, chosen: Mapping[str, float] | None) -> None:
    """Draw ESS against bias, a dot for every setting; the recommended one is ringed and named."""
    x, y = zip(*[(_bias(row), _ess(row)) for row in family.rows], strict=True)
    axes.scatter(x, y, s=5, color=FIRST, linewidths=0, rasterized=True)
    for row in family.rows:
        if row.bounds == chosen:
            axes.plot(_bias(row), _ess(row), "o", color=INK, markersize=7, fillstyle="none")
            axes.annotate(
                "recommended",
                (_bias(row), _ess(row)),
                xytext=(-6, -8),
                textcoords="offset points",
                fontsize=7,
                ha="right",
            )
    axes.set_xlim(left=-0.02)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("weight bias")
    axes.set_ylabel("ESS of sequences")


def _bias(row: SweepRow) -> float:
    return NAN if row.weight_distance is None else row.weight_distance


def _ess(row: SweepRow) -> float:
    return NAN if row.ess_seq_applied.value is None else row.ess_seq_applied.value


def _kept(row: SweepRow) -> float:
    return NAN if row.kept_token_share.value is None else row.kept_token_share.value


COLOURS = {"token": FIRST, "sequence": SECOND, "geometric": INK}  # by what the bounds hold


def trade_offs(result: SweepResult, figure: Figure) -> None:
    """Draw the best settings of every family: ESS against bias, each line named at its end."""
    axes = figure.add_subplot()
    ends_of: list[tuple[float, float, str, str]] = []
    for name, family in result.families.items():
        x, y = zip(*_front([(_bias(row), _ess(row)) for row in family.rows]), strict=True)
        axes.plot(x, y, color=COLOURS[family.scope], linewidth=1.0, alpha=0.7)
        if not np.isnan(y[-1]):
            ends_of.append((y[-1], x[-1], name, COLOURS[family.scope]))
    _name_lines(axes, ends_of)
    for index, (level, colour) in enumerate(COLOURS.items()):
        place: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": 9, "ha": "right"}
        axes.annotate(f"bounds on {level}", (0.98, 0.18 - 0.06 * index), color=colour, **place)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("bias: E|ratio − weight|")
    axes.set_ylabel("ESS of sequences")


def _name_lines(axes: Axes, ends_of: list[tuple[float, float, str, str]]) -> None:
    """Write the names of lines beside the plot, in the order of their ends and clear of each other.

    An end is (y, x, name, colour).
    """
    step = 1.0 / max(len(ends_of), 1)
    room = 1.0
    for index, (y, x, name, colour) in enumerate(sorted(ends_of, reverse=True)):
        left = step * (len(ends_of) - 1 - index)  # for those that follow
        room = max(min(room, y), left)
        axes.annotate(
            name,
            (x, y),
            xytext=(1.02, room),
            textcoords=("axes fraction", "data"),
            fontsize=6,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.5},
        )
        room -= step


def _front(points: Points) -> Points:
    """Return the Pareto front: points that no other point beats in both coordinates."""
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
        "whole sequences, E|ratio - weight|, and the effective sample size that this buys. Its "
        "name is joined to its largest effective sample size. Up and left is better; weights by "
        "token are far from the ratios of long sequences at any bound.",
        draw=trade_offs,
        on_page=False,
        applies=lambda result: result.recommendation.answer != "fix-the-cause",
    ),
)
