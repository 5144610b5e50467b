"""Figures of what every experiment leaves unexplained, and of whose weights made every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.style import FIRST, GRID, INK, NARROW, SECOND, short
from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 14  # bars
LONGEST = 46  # letters beside a bar
UNEXPLAINED = "#8a929c"  # rows that no weights explain
ROWS = "row of the table"
LEFT = "rms left unexplained (nats)"


def shown(result: DiagnoseResult) -> list[ExperimentResult]:
    """Return the best experiment of each cause, those first that leave the least."""
    best: dict[tuple[str, str], ExperimentResult] = {}
    for one in result.experiments:
        key = one.column, one.cause
        if key not in best or one.gain > best[key].gain:
            best[key] = one
    order = sorted(best.values(), key=lambda one: one.rms_left / max(one.rms_before, 1e-12))
    return order[:MOST]


def left(result: DiagnoseResult, figure: Figure) -> None:
    """Draw the rms of what each experiment leaves beside that of the checkpoint's own column."""
    axes = figure.add_subplot()
    chosen = shown(result)
    places = np.arange(len(chosen))
    least = 1e-7
    for place, one in zip(places, chosen, strict=True):
        ends = [max(one.rms_before, least), max(one.rms_left, least)]
        colour = SECOND if one.explained else FIRST
        axes.plot(ends, [place, place], color=GRID, linewidth=3, solid_capstyle="round")
        axes.plot(ends[0], place, "o", color=INK, markersize=4)
        axes.plot(ends[1], place, "o", color=colour, markersize=6)
    longest = LONGEST if figure.get_figwidth() >= NARROW else LONGEST // 2
    labels = [
        one.setting if len(one.setting) <= longest else f"{one.setting[: longest - 1]}…"
        for one in chosen
    ]
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.minorticks_off()
    axes.set_xlabel(LEFT)
    axes.grid(axis="y", visible=False)


def left_chart(result: DiagnoseResult) -> Chart:
    """Return what is unexplained before and after each experiment."""
    return Chart(
        form="dots",
        columns=("experiment", "cause", "before", "left", "gain", "z", "note"),
        rows=[
            (
                one.setting,
                one.cause,
                one.rms_before,
                one.rms_left,
                one.gain,
                one.z,
                "explained" if one.explained else "",
            )
            for one in shown(result)
        ],
        x=Axis(label=LEFT, scale="log"),
        series=(
            Series(label="by the checkpoint's own log-probs", y="before", tone="ink"),
            Series(label="by the experiment's", y="left", tone="first"),
        ),
        options={"joined": True},
    )


def posterior(result: DiagnoseResult, figure: Figure) -> None:
    """Draw the probability of every candidate's weights for every row."""
    from matplotlib.colors import to_rgb
    from matplotlib.ticker import MaxNLocator

    policies = list(dict.fromkeys(row["column"] for row in result.weights))
    grid = figure.subplots(len(policies), 1, squeeze=False).ravel()
    for axes, policy in zip(grid, policies, strict=True):
        rows = [row for row in result.weights if row["column"] == policy]
        names = list(rows[0]["probability"])
        shares = np.array([[row["probability"][name] for row in rows] for name in names])
        explained = np.array([row["row_explained"] for row in rows])
        colours = np.where(explained[:, None], to_rgb(FIRST), to_rgb(UNEXPLAINED))
        axes.imshow(
            1.0 - shares[..., None] * (1.0 - colours),  # white where a share is 0
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, len(rows) - 0.5, len(names) - 0.5, -0.5),
            rasterized=True,
        )
        axes.set_yticks(range(len(names)), [short(name) for name in names])
        axes.set_title(policy, fontsize=9, loc="left")
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        # Rows are drawn side by side, and may be some of the table.
        axes.xaxis.set_major_formatter(
            lambda place, _, of=rows: str(of[round(place)]["row"]) if 0 <= place < len(of) else ""
        )
        axes.set_xlabel(ROWS)


def posterior_chart(result: DiagnoseResult) -> Chart:
    """Return the same probabilities, row by row."""
    names = list(dict.fromkeys(name for row in result.weights for name in row["probability"]))
    return Chart(
        form="lanes",
        columns=(
            "row",
            "policy",
            *(f"P({name})" for name in names),
            "explained",
            "other weights from token",
        ),
        rows=[
            (
                row["row"],
                row["column"],
                *(row["probability"].get(name) for name in names),
                "yes" if row["row_explained"] else "no",
                row["switch"],
            )
            for row in result.weights
        ],
        x=Axis(label=ROWS),
        options={"lanes": names, "panel": "policy", "told": "explained"},
    )


FIGURES = (
    FigureSpec(
        name="unexplained-by-experiment",
        kind="diagnose",
        title="What each experiment leaves unexplained",
        says="One point of a line is the rms of recorded minus the checkpoint's own log-prob, the "
        "other that of recorded minus what the supposed fault would have made. The cause is the "
        "line that reaches an engine's noise; logarithmic.",
        draw=left,
        chart=left_chart,
        applies=lambda result: bool(result.experiments),
        size=lambda result: (11.0, 1.2 + 0.3 * len(shown(result))),
    ),
    FigureSpec(
        name="weights-by-row",
        kind="diagnose",
        title="Whose weights made the rows",
        says="A column is a row of the table, a line a checkpoint; the stronger the colour, the "
        "more likely its weights. Grey rows match no checkpoint.",
        draw=posterior,
        chart=posterior_chart,
        applies=lambda result: bool(result.weights),
        size=lambda result: (
            11.0,
            1.0 + 1.6 * len({row["column"] for row in result.weights}),
        ),
    ),
)
