"""Figures of training logs: every known key over the steps, and where it moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.diagnose.words import unit
from rcdiag.results import DiagnoseResult
from rcdiag.results.log_summary import LoggedQuantity

ON_LOG_SCALE = 50.0  # values above 0 that are further apart than this factor
MOST = 18  # panels


def over_steps(result: DiagnoseResult) -> Chart:
    """Return one panel for each known key; several runs are lines of one panel."""
    shown = _keys(result)
    rows = [
        (one.key, f"{one.key} of {log.file}", step, value)
        for log in result.logs
        for one in log.quantities
        if one.key in shown
        for step, value in zip(one.at_steps, one.numbers, strict=True)
    ]
    return Chart(
        columns=("key", "run", "step", "value"),
        rows=rows,
        panels=[_panel(result, key) for key in shown],
        across=3,
    )


def _keys(result: DiagnoseResult) -> list[str]:
    """Return the keys with a panel: those that moved, in that order, then the others."""
    moved = [one.key for log in result.logs for one in log.keys_moved]
    known = [one.key for log in result.logs for one in log.quantities]
    return list(dict.fromkeys([*moved, *known]))[:MOST]


def _panel(result: DiagnoseResult, key: str) -> Panel:
    of_key: list[LoggedQuantity] = [
        one for log in result.logs for one in log.quantities if one.key == key
    ]
    values = [value for one in of_key for value in one.numbers]
    # The first movement of each run: a number of heavy tails jumps at many steps.
    moved = [[one.step_moved for one in log.keys_moved if one.key == key] for log in result.logs]
    steps = {min(steps) for steps in moved if steps}
    return panel_of_key(key, unit(of_key[0]), values, steps, group="run")


def panel_of_key(
    key: str,
    unit: str,
    values: Iterable[float | None],
    steps: Collection[int],
    group: str | None = None,
    ends: tuple[float, float] | None = None,
) -> Panel:
    """Make the panel of a key over the steps, with a line at those at which it moved.

    `ends` are the first and the last step, where several panels have the same.
    """
    known = [value for value in values if value is not None]
    first, last = (None, None) if ends is None else ends
    far = bool(known) and min(known) > 0 and max(known) > ON_LOG_SCALE * min(known)
    return Panel(
        title=key,
        x=ChartAxis(label="training step", whole=True, start=first, end=last),
        y=ChartAxis(label=unit, scale="log" if far else "linear"),
        marks=[Mark(shape="line", x="step", y="value", group=group, thin=True)],
        rules=[ReferenceLine(at=step, label=f"moves at step {step}") for step in sorted(steps)],
        where=("key", key),
        height=0.6,
    )


FIGURES = (
    FigureSpec(
        name="log-over-steps",
        kind="diagnose",
        title="Keys of the log over the steps",
        says="Keys that moved stand first, in the order in which they did; dashed: the step at "
        "which a key first moved.",
        chart=over_steps,
        applies=lambda result: bool(result.logs),
    ),
)
