"""Terminal and page say this about the experiments of a diagnosis."""

from __future__ import annotations

from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult
from rcdiag.results.diagnosis import NOTHING_WRONG

CLEAR = 3.0  # standard errors from which on an experiment predicts better than the checkpoint


def is_nearer(one: ExperimentResult) -> bool:
    """Tell whether an experiment predicts a column better than the checkpoint as it is."""
    clearly = one.gain > 0 and one.z > CLEAR and one.rms_left < one.rms_before
    return one.explained or clearly


def answer(result: DiagnoseResult) -> str:
    """Say what the experiments explain."""
    if result.trainer_model is None:
        return "told by the table alone; --model runs experiments"
    told = [one for one in result.experiments if one.explained]
    count = len({one.experiment for one in result.experiments})
    ran = f"{count} experiment{'s' * (count != 1)} in {result.duration:.0f} s"
    rows = "" if result.steps_of_model is None else f"; {_steps(result.steps_of_model)}"
    if not told:
        causes = result.diagnosis.causes if result.diagnosis else []
        if all(cause.slug in NOTHING_WRONG for cause in causes):
            return f"{ran}: nothing beside the noise of an engine is left to explain{rows}"
        better = any(is_nearer(one) for one in result.experiments)
        none = (
            "none explains a column down to an engine's noise"
            if better
            else "none predicts a column better than the checkpoint itself"
        )
        return f"{ran}; {none}{rows}"
    best = max(told, key=lambda one: one.gain)
    left = f"{best.rms_left:.2g} of {best.rms_before:.2g} nats (rms) are left by {best.setting}"
    return f"{ran}; {left}{rows}"


def _steps(steps: list[int]) -> str:
    """Say of which steps the checkpoint is."""
    named = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
    return f"the checkpoint is that of step {named} alone: other rows were not asked about"


def posterior_rows(result: DiagnoseResult) -> list[str]:
    """Say for each column how many rows the weights of each checkpoint made."""
    lines = []
    for policy in dict.fromkeys(row["column"] for row in result.weights):
        rows = [row for row in result.weights if row["column"] == policy]
        counts: dict[str, int] = {}
        for row in rows:
            name = max(row["probability"].items(), key=lambda entry: entry[1])[0]
            name = name if row["row_explained"] else "none of them"
            counts[name] = counts.get(name, 0) + 1
        shares = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        switched = sum(row["switch"] is not None for row in rows)
        more = f"; in {switched:,} rows the weights change" if switched else ""
        lines.append(f"{policy}: rows by whose weights explain them: {shares}{more}")
    return lines
