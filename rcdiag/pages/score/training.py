"""The trainer's log of the training, beside the mismatch of the table, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from rcdiag.formats import from_to
from rcdiag.pages.charts import Chart
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.diagnose.logs import panel_of_key
from rcdiag.pages.score.steps import changes, values_by_step
from rcdiag.results import ScoreResult
from rcdiag.results.log_summary import KeyMoved, LoggedQuantity, LogSummary

# Quantities in which a breakdown of training shows, in the order in which it usually does.
OF_TRAINING = ("grad_norm", "loss", "entropy", "reward", "response_length")
OURS = "k3_kl"
BESIDE_MISMATCH = "training-beside-mismatch"  # the figure


def training_keys(log: LogSummary | None) -> list[LoggedQuantity]:
    """Return the log's keys about the training itself, the gradient norm first."""
    known = [] if log is None else [one for one in log.quantities if one.quantity in OF_TRAINING]
    return sorted(known, key=lambda one: OF_TRAINING.index(one.quantity))


def moved_in_training(moved: Sequence[KeyMoved]) -> str:
    """Say which of these keys moved, and when; "" if none did."""
    named = [
        f"{one.key} ({from_to(one.key_before, one.key_after)}) "
        f"{'from' if one.shape == 'creep' else 'at'} step {one.step_moved}"
        f"{' on' if one.shape == 'creep' else ''}"
        for one in moved
        if one.quantity in OF_TRAINING
    ]
    return f"moved in the log: {', '.join(named)}" if named else ""


def _log_of(result: ScoreResult) -> LogSummary | None:
    return None if result.logged is None else result.logged.log_shows


def beside_mismatch(result: ScoreResult) -> Chart:
    """Return a panel for the mismatch of the table, and one for each key of the training."""
    ours = {step: value.value for step, value in values_by_step(result, OURS).items()}
    log = _log_of(result)
    keys = training_keys(log)
    steps = [*ours, *(step for one in keys for step in one.at_steps)]
    ends = min(steps), max(steps)
    rows = [(OURS, step, value) for step, value in ours.items()]
    panels = [panel_of_key(OURS, "nats per token", ours.values(), changes(result), ends=ends)]
    for one in keys:
        rows += zip([one.key] * len(one.at_steps), one.at_steps, one.numbers, strict=True)
        moved = [] if log is None else [at.step_moved for at in log.keys_moved if at.key == one.key]
        panels.append(panel_of_key(one.key, one.quantity_unit, one.numbers, moved, ends=ends))
    return Chart(columns=("key", "step", "value"), rows=rows, panels=panels, across=3)


FIGURES = (
    FigureSpec(
        name=BESIDE_MISMATCH,
        kind="score",
        title="The training beside the mismatch",
        says="k3_kl of the table, and the gradient norm, loss, entropy, reward and response length "
        "from the trainer's log, as far as it has them. A gradient norm that grows only after the "
        "mismatch did may be its symptom; one that grew before it is not. Dashed: the step at "
        "which a number moved.",
        chart=beside_mismatch,
        applies=lambda result: bool(result.steps) and bool(training_keys(_log_of(result))),
    ),
)
