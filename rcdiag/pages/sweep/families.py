"""Figures of estimator families: each over its bounds, and the best settings of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Note, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import SweepFamily, SweepResult

ESS = "ESS of sequences"
# Column of a family's chart -> path to its number in a row of the result. The page reads the
# numbers of its sliders from the result document by the same paths.
NUMBERS = {
    "kept tokens": "kept_token_share.value",
    ESS: "ess_seq_applied.value",
    "ESS low": "ess_seq_applied.low",
    "ESS high": "ess_seq_applied.high",
    "weight bias": "weight_distance",
}
# By the level that the bounds of a family apply to.
TONES: Mapping[str, Tone] = {"token": "first", "sequence": "second", "geometric": "ink"}
Points = list[tuple[float, float]]


def free_bounds(family: SweepFamily) -> dict[str, list[float]]:
    """Return the bounds that vary independently, with their values.

    A window whose two ends move together has one such bound. The bound that rows are ordered by
    comes first.
    """
    free: dict[str, list[float]] = {}
    for key in sorted(family.rows[0].bounds, key=lambda key: key != family.axis):
        values = sorted({row.bounds[key] for row in family.rows})
        if len(values) > 1 and not any(_tied(family, key, other) for other in free):
            free[key] = values
    return free or {family.axis: [family.rows[0].bounds[family.axis]]}


def _tied(family: SweepFamily, key: str, other: str) -> bool:
    """Tell whether one bound is determined by the other."""
    pairs = {(row.bounds[key], row.bounds[other]) for row in family.rows}
    return len(pairs) == len({second for _, second in pairs})


def family_figures(result: SweepResult) -> list[FigureSpec]:
    """Return a figure for each family, with the recommended bounds highlighted."""
    advice = result.recommendation
    chosen = {one.family: one.bounds for one in advice.candidates if one.name == advice.choice}

    def figure(name: str, family: SweepFamily) -> FigureSpec:
        return FigureSpec(
            name=f"family-{name}",
            kind="sweep",
            title=family.title,
            says=family.about,
            chart=lambda result: family_chart(family, chosen.get(name)),
            size=lambda result: (5.6, 2.9),
        )

    return [figure(name, family) for name, family in result.families.items()]


def family_chart(family: SweepFamily, chosen: Mapping[str, float] | None = None) -> Chart:
    """Return curves or a map over the bounds, and the trade-off between bias and variance.

    `chosen` are the recommended bounds, which are highlighted.
    """
    keys = list(free_bounds(family))
    names = [", ".join(f"{key} {row.bounds[key]:.4g}" for key in keys) for row in family.rows]
    strong = [name for name, row in zip(names, family.rows, strict=True) if row.bounds == chosen]
    over = _over_two_bounds(family, keys) if len(keys) > 1 else _over_one_bound(keys[0], chosen)
    numbers_of = attrgetter(*NUMBERS.values())
    return Chart(
        columns=("setting", *keys, *NUMBERS),
        rows=[
            (name, *(row.bounds[key] for key in keys), *numbers_of(row))
            for name, row in zip(names, family.rows, strict=True)
        ],
        panels=[
            over,
            Panel(
                x=ChartAxis(label="weight bias", start=0.0),
                y=ChartAxis(label=ESS, percent=True, start=0.0, end=1.0),
                marks=[Mark(shape="dot", x="weight bias", y=ESS)],
            ),
        ],
        across=2,
        strong=strong[0] if strong else "",
    )


def _over_one_bound(key: str, chosen: Mapping[str, float] | None) -> Panel:
    """Return a panel of kept tokens, ESS with its 95% interval, and bias over one bound."""
    return Panel(
        x=ChartAxis(label=f"{key} bound", scale="log"),
        y=ChartAxis(label="share; bias", start=0.0),
        marks=[
            Mark(shape="line", x=key, y="kept tokens", label="kept tokens", tone="soft"),
            Mark(shape="line", x=key, y=ESS, low="ESS low", high="ESS high", label=ESS),
            Mark(
                shape="line",
                x=key,
                y="weight bias",
                label="weight bias",
                tone="second",
                dashed=True,
            ),
        ],
        rules=[] if chosen is None else [ReferenceLine(at=chosen[key], label="recommended")],
    )


def _over_two_bounds(family: SweepFamily, keys: Sequence[str]) -> Panel:
    """Return a panel of the ESS of sequences over two bounds, a cell for each pair."""
    across, up = (
        [f"{bound:.9f}".rstrip("0").rstrip(".") for bound in free_bounds(family)[key]]
        for key in keys[:2]
    )
    return Panel(
        title=ESS,
        x=ChartAxis(label=keys[0], scale="names", names=across),
        y=ChartAxis(label=keys[1], scale="names", names=up[::-1]),
        marks=[Mark(shape="cell", x=keys[0], y=keys[1], value=ESS)],
    )


def trade_offs(result: SweepResult) -> Chart:
    """Return ESS against bias for the best settings of each family, lines labelled at the end."""
    rows, notes = [], []
    for name, family in result.families.items():
        front = _front(
            [
                (row.weight_distance, row.ess_seq_applied.value)
                for row in family.rows
                if row.weight_distance is not None and row.ess_seq_applied.value is not None
            ]
        )
        rows += [(name, family.scope, bias, ess) for bias, ess in front]
        notes += [
            Note(text=name, x=bias, y=ess, tone=TONES[family.scope]) for bias, ess in front[-1:]
        ]
    marks = [
        Mark(
            shape="line",
            x="weight bias",
            y=ESS,
            group="family",
            where=("scope", scope),
            label=f"bounds on {scope}",
            tone=tone,
        )
        for scope, tone in TONES.items()
    ]
    return Chart(
        columns=("family", "scope", "weight bias", ESS),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label="bias: E|ratio − weight|"),
                y=ChartAxis(label=ESS, percent=True, start=0.0, end=1.0),
                marks=marks,
                notes=notes,
            )
        ],
    )


def _front(points: Points) -> Points:
    """Return the Pareto front: points that no other point beats in both coordinates."""
    front: Points = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front


FIGURES = (
    FigureSpec(
        name="ess-against-bias",
        kind="sweep",
        title="Variance against bias",
        says="A line is a family over its bounds: the distance of its weights from the ratios of "
        "whole sequences, E|ratio - weight|, and the effective sample size gained for it. A "
        "family's name is joined to its largest effective sample size. Up and left is better; "
        "weights by token are far from the ratios of long sequences at any bound.",
        chart=trade_offs,
        on_page=False,
        applies=lambda result: result.recommendation.answer != "fix-the-cause",
    ),
)
