"""Figures of training logs: the known keys over the steps, and where they moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import cycle
from pathlib import Path

from rcdiag.diagnosis.logged.run import QUANTITIES
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import DiagnoseResult
from rcdiag.results.log_summary import KeyMoved, LoggedQuantity, LogSummary

ON_LOG_SCALE = 50.0  # a larger ratio of values gets a logarithmic axis, of either sign if need be
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


def in_order(moved: Sequence[KeyMoved]) -> list[KeyMoved]:
    """Order keys that moved by step, those that compare sampler and trainer before the others.

    Entropy, reward and length drift in healthy runs too, and often move first.
    """
    known = {one.name for one in QUANTITIES.values() if one.compares}
    return sorted(moved, key=lambda one: (one.quantity not in known, one.step_moved))


def _keys(result: DiagnoseResult) -> list[str]:
    """Return the keys with a panel: those that moved, as `in_order`, then the others."""
    moved = [one.key for one in in_order([one for log in result.logs for one in log.keys_moved])]
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
    several = len(result.logs) > 1
    moved = sorted(
        (one.step_moved, f", {Path(log.file).name}" if several else "")
        for log in result.logs
        for one in log.keys_moved
        if one.key == key
    )
    run = moved[0][1] if moved else ""
    lines = [
        Mark(
            shape="line",
            x="step",
            y="value",
            thin=True,
            where=("run", _run(key, log)),
            label=Path(log.file).name if several else "",
            tone=tone,
        )
        for log, tone in zip(result.logs, cycle(TONES), strict=False)
    ]
    steps = [step for step, _ in moved[:1]]
    return panel_of_key(key, of_key[0].quantity_unit, values, steps, lines, run=run)


def panel_of_key(
    key: str,
    unit: str,
    values: Iterable[float | None],
    steps: Collection[int],
    marks: Sequence[Mark] = (Mark(shape="line", x="step", y="value", thin=True),),
    ends: tuple[float, float] | None = None,
    run: str = "",
) -> Panel:
    """Make the panel of a key over the steps, with lines at the steps at which it moved.

    `ends` are the first and last step, for panels that share the axis. `run` says which run moved,
    where there are several.
    """
    known = [value for value in values if value is not None]
    first, last = (None, None) if ends is None else ends
    sizes = sorted(map(abs, known)) or [0.0]
    usual = sizes[len(sizes) // 4] or sizes[-1]  # the first quartile
    y = ChartAxis(label=unit)
    if known and min(known) > 0 and max(known) > ON_LOG_SCALE * min(known):
        y = ChartAxis(label=unit, scale="log")
    elif sizes[-1] > ON_LOG_SCALE * usual:
        y = ChartAxis(label=unit, scale="symlog", threshold=usual)
    return Panel(
        title=key,
        x=ChartAxis(label="training step", whole=True, start=first, end=last),
        y=y,
        marks=list(marks),
        rules=[
            ReferenceLine(at=step, label=f"{'' if run else 'moves at '}step {step}{run}")
            for step in sorted(steps)
        ],
        where=("key", key),
        height=0.6,
    )


FIGURES = (
    FigureSpec(
        name="log-over-steps",
        kind="diagnose",
        title="Keys of the log over the steps",
        says="Keys that moved come first, in order of time, those that compare sampler and trainer "
        "before the others; dashed: the step at which a key first moved. Movements too small to "
        "matter (docs/logs.md) are not marked.",
        chart=over_steps,
        size=lambda result: (WIDTH, 1.0 + PANEL * -(-len(_keys(result)) // ACROSS)),
        applies=lambda result: bool(result.logs),
    ),
)
