"""Figures of training logs: the known keys over the steps, and where they moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import cycle
from pathlib import Path

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import DiagnoseResult
from rcdiag.results.log_summary import LoggedQuantity, LogSummary

ON_LOG_SCALE = 50.0  # positive values whose ratio exceeds this get a logarithmic axis
MOST, ACROSS = 18, 3  # panels in all, and in a row
WIDTH, PANEL = 9.0, 1.7  # inches: width of a figure in a file, and height of a panel
TONES: tuple[Tone, ...] = ("first", "second", "ink", "soft")  # one for each run


def over_steps(result: DiagnoseResult) -> Chart:
    """Return a panel for each known key; several runs are lines in one panel."""
    shown = _keys(result)
    rows = [
        (one.key, _run(one.key, log), step, value)
        for log in result.logs
        for one in log.quantities
        if one.key in shown
        for step, value in zip(one.at_steps, one.numbers, strict=True)
    ]
    return Chart(
        columns=("key", "run", "step", "value"),
        rows=rows,
        panels=[_panel(result, key) for key in shown],
        across=ACROSS,
    )


def _keys(result: DiagnoseResult) -> list[str]:
    """Return the keys with a panel: those that moved, in order of time, then the others."""
    moved = [one.key for log in result.logs for one in log.keys_moved]
    known = [one.key for log in result.logs for one in log.quantities]
    return list(dict.fromkeys([*moved, *known]))[:MOST]


def _run(key: str, log: LogSummary) -> str:
    """Return the name of a run's line in the panel of a key."""
    return f"{key} of {log.file}"


def _panel(result: DiagnoseResult, key: str) -> Panel:
    of_key: list[LoggedQuantity] = [
        one for log in result.logs for one in log.quantities if one.key == key
    ]
    values = [value for one in of_key for value in one.numbers]
    moved = [one.step_moved for log in result.logs for one in log.keys_moved if one.key == key]
    lines = [
        Mark(
            shape="line",
            x="step",
            y="value",
            thin=True,
            where=("run", _run(key, log)),
            label=Path(log.file).name if len(result.logs) > 1 else "",
            tone=tone,
        )
        for log, tone in zip(result.logs, cycle(TONES), strict=False)
    ]
    return panel_of_key(key, of_key[0].quantity_unit, values, sorted(moved)[:1], lines)


def panel_of_key(
    key: str,
    unit: str,
    values: Iterable[float | None],
    steps: Collection[int],
    marks: Sequence[Mark] = (Mark(shape="line", x="step", y="value", thin=True),),
    ends: tuple[float, float] | None = None,
) -> Panel:
    """Make the panel of a key over the steps, with lines at the steps at which it moved.

    `ends` are the first and last step, for panels that share the axis.
    """
    known = [value for value in values if value is not None]
    first, last = (None, None) if ends is None else ends
    far = bool(known) and min(known) > 0 and max(known) > ON_LOG_SCALE * min(known)
    return Panel(
        title=key,
        x=ChartAxis(label="training step", whole=True, start=first, end=last),
        y=ChartAxis(label=unit, scale="log" if far else "linear"),
        marks=list(marks),
        rules=[ReferenceLine(at=step, label=f"moves at step {step}") for step in sorted(steps)],
        where=("key", key),
        height=0.6,
    )


FIGURES = (
    FigureSpec(
        name="log-over-steps",
        kind="diagnose",
        title="Keys of the log over the steps",
        says="Keys that moved come first, in order of time; dashed: the step at which a key first "
        "moved. Movements too small to matter (docs/logs.md) are not marked.",
        chart=over_steps,
        size=lambda result: (WIDTH, 1.0 + PANEL * -(-len(_keys(result)) // ACROSS)),
        applies=lambda result: bool(result.logs),
    ),
)
