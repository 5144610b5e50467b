"""Figures of what each experiment leaves unexplained, and of which checkpoint made each row."""

from __future__ import annotations

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult

MOST = 14  # rows of the figure
ROWS = "row of the table"
LEFT = "rms left unexplained (nats)"
# Label, tone and note of the dots of experiments.
LEFT_BY: tuple[tuple[str, Tone, str], ...] = (
    ("predicted by the experiment", "first", ""),
    ("predicted by the experiment, down to engine noise", "second", "explained"),
)


def shown(result: DiagnoseResult) -> list[ExperimentResult]:
    """Return the best experiment of each cause, sorted by how little it leaves unexplained."""
    best: dict[tuple[str, str], ExperimentResult] = {}
    for one in result.experiments:
        key = one.column, one.cause
        if key not in best or one.gain > best[key].gain:
            best[key] = one
    order = sorted(best.values(), key=lambda one: one.rms_left / max(one.rms_before, 1e-12))
    return order[:MOST]


def left(result: DiagnoseResult) -> Chart:
    """Return the chart of the unexplained rms before and after each experiment."""
    several = len({one.column for one in shown(result)}) > 1
    rows = [
        (
            f"{one.setting}, {one.column}" if several else one.setting,
            one.cause,
            one.rms_before,
            one.rms_left,
            one.gain,
            one.z,
            "explained" if one.explained else "",
        )
        for one in shown(result)
    ]
    tested = [
        Mark(shape="dot", x="left", y="experiment", label=label, tone=tone, where=("note", note))
        for label, tone, note in LEFT_BY
    ]
    return Chart(
        columns=("experiment", "cause", "before", "left", "gain", "z", "note"),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label=LEFT, scale="log"),
                y=ChartAxis(scale="names", names=list(dict.fromkeys(row[0] for row in rows))),
                marks=[
                    Mark(shape="range", x="before", to="left", y="experiment"),
                    Mark(
                        shape="dot",
                        x="before",
                        y="experiment",
                        label="predicted by the checkpoint",
                        tone="ink",
                    ),
                    *tested,
                ],
            )
        ],
    )


def posterior(result: DiagnoseResult) -> Chart:
    """Return the chart of each checkpoint's probability for every row, a panel for each policy."""
    names = list(dict.fromkeys(name for row in result.weights for name in row["probability"]))
    looks: tuple[tuple[str, Tone], ...] = (("yes", "first"), ("no", "soft"))
    panels = [
        Panel(
            title=policy,
            x=ChartAxis(
                label=ROWS,
                scale="names",
                names=[str(row["row"]) for row in result.weights if row["column"] == policy],
            ),
            y=ChartAxis(scale="names", names=names),
            marks=[
                Mark(
                    shape="cell",
                    x="row",
                    lane=name,
                    value=f"P({name})",
                    tone=tone,
                    where=("explained", explained),
                )
                for name in names
                for explained, tone in looks
            ],
            where=("policy", policy),
        )
        for policy in dict.fromkeys(row["column"] for row in result.weights)
    ]
    return Chart(
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
        panels=panels,
    )


FIGURES = (
    FigureSpec(
        name="unexplained-by-experiment",
        kind="diagnose",
        title="What each experiment leaves unexplained",
        says="The rms difference between recorded and predicted log-probs, predicted by the "
        "checkpoint itself and by each experiment, which supposes a fault; logarithmic. The cause "
        "is the experiment that leaves no more than engine noise.",
        chart=left,
        applies=lambda result: bool(result.experiments),
        size=lambda result: (11.0, 1.2 + 0.3 * len(shown(result))),
    ),
    FigureSpec(
        name="weights-by-row",
        kind="diagnose",
        title="Whose weights made the rows",
        says="A column is a row of the table, a line a checkpoint; the stronger the colour, the "
        "more likely it is that its weights made the row. Grey rows match no checkpoint.",
        chart=posterior,
        applies=lambda result: bool(result.weights),
        size=lambda result: (
            11.0,
            1.0 + 1.6 * len({row["column"] for row in result.weights}),
        ),
    ),
)
