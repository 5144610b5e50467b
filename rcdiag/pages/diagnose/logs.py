"""Figures of training logs: the known quantities over the steps, and where their keys moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import cycle

from rcdiag.diagnosis.logged.run import QUANTITIES
from rcdiag.formats import shortest_names
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import DiagnoseResult
from rcdiag.results.log_summary import KeyMoved, LogSummary

ON_LOG_SCALE = 50.0  # a larger ratio of values gets a logarithmic axis, of either sign if need be
MOST, ACROSS = 18, 3  # panels in all, and in a row
WIDTH, PANEL = 9.0, 1.7  # inches: width of a figure in a file, and height of a panel
TONES: tuple[Tone, ...] = ("first", "second", "ink", "soft")  # one for each run


def over_steps(result: DiagnoseResult) -> Chart:
    """Return a panel for each known quantity; several runs are lines in one panel."""
    shown = _shown_keys(result)
    rows = [
        (keys, _run(keys, log), step, value)
        for log in result.logs
        for one in log.quantities
        if (keys := shown.get(one.quantity)) is not None
        for step, value in zip(one.at_steps, one.numbers, strict=True)
    ]
    return Chart(
        columns=("key", "run", "step", "value"),
        rows=rows,
        panels=[_panel(result, quantity, keys) for quantity, keys in shown.items()],
        across=ACROSS,
    )


def names_of(logs: Sequence[LogSummary]) -> list[str]:
    """Return the names of the logs' files, with as many folders as tell each from the others."""
    return shortest_names([log.file for log in logs])


def in_order(moved: Sequence[KeyMoved]) -> list[KeyMoved]:
    """Order keys that moved by step, those that compare sampler and trainer before the others.

    Entropy, reward and length drift in healthy runs too, and often move first.
    """
    known = {one.name for one in QUANTITIES.values() if one.compares}
    return sorted(moved, key=lambda one: (one.quantity not in known, one.step_moved))


def _shown_keys(result: DiagnoseResult) -> dict[str, str]:
    """Return the quantities with a panel, with the keys under which the logs have them.

    Those that moved come first, as `in_order`.
    """
    moved = in_order([one for log in result.logs for one in log.keys_moved])
    known = [(one.quantity, one.key) for log in result.logs for one in log.quantities]
    keys: dict[str, dict[str, None]] = {}
    for quantity, key in (*((one.quantity, one.key) for one in moved), *known):
        keys.setdefault(quantity, {})[key] = None
    return {name: " or ".join(of) for name, of in list(keys.items())[:MOST]}


def _run(keys: str, log: LogSummary) -> str:
    """Return the name of a run's line in the panel of some keys."""
    return f"{keys} of {log.file}"


def _panel(result: DiagnoseResult, quantity: str, keys: str) -> Panel:
    shown = [one for log in result.logs for one in log.quantities if one.quantity == quantity]
    values = [value for one in shown for value in one.numbers]
    names = names_of(result.logs) if len(result.logs) > 1 else [""]
    moved = sorted(
        (one.step_moved, f", {name}" if name else "")
        for name, log in zip(names, result.logs, strict=True)
        for one in log.keys_moved
        if one.quantity == quantity
    )
    run = moved[0][1] if moved else ""
    lines = [
        Mark(
            shape="line",
            x="step",
            y="value",
            thin=True,
            where=("run", _run(keys, log)),
            label=name,
            tone=tone,
        )
        for name, log, tone in zip(names, result.logs, cycle(TONES), strict=False)
    ]
    steps = [step for step, _ in moved[:1]]
    return panel_of_key(keys, shown[0].quantity_unit, values, steps, lines, run=run)


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
        size=lambda result: (WIDTH, 1.0 + PANEL * -(-len(_shown_keys(result)) // ACROSS)),
        applies=lambda result: bool(result.logs),
    ),
)
