"""Sentences about the experiments of a diagnosis, for terminal and page."""

from __future__ import annotations

from rcdiag.formats import plural
from rcdiag.results import DiagnoseResult
from rcdiag.results.diagnose import ExperimentResult
from rcdiag.results.diagnosis import NOTHING_WRONG

CLEAR = 3.0  # z above which an experiment clearly predicts better than the checkpoint


def is_nearer(one: ExperimentResult) -> bool:
    """Tell whether an experiment predicts a column better than the checkpoint itself."""
    clearly = one.gain > 0 and one.z > CLEAR and one.rms_left < one.rms_before
    return one.explained or clearly


def answer(result: DiagnoseResult) -> str:
    """Say what the experiments explain."""
    if result.logs:
        known = len({one.key for log in result.logs for one in log.quantities})
        trainers = dict.fromkeys(log.trainer_of_log or "an unknown trainer" for log in result.logs)
        logs = "the log" if len(result.logs) == 1 else f"{len(result.logs)} logs"
        by = " and ".join(trainers)
        return f"{plural(known, 'known metric')} in {logs} of {by}; no token data"
    if result.trainer_model is None:
        return "from the table only: --model CKPT runs experiments"
    explained = [one for one in result.experiments if one.explained]
    count = len({one.experiment for one in result.experiments})
    ran = f"{plural(count, 'experiment')} in {result.duration:.0f} s"
    rows = ""
    if (steps := result.steps_of_model) is not None:
        named = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
        rows = f"; the checkpoint is that of step {named}: rows of other steps were not tested"
    if not explained:
        causes = result.diagnosis.causes if result.diagnosis else []
        if all(cause.slug in NOTHING_WRONG for cause in causes):
            return f"{ran}: nothing but engine noise is left to explain{rows}"
        better = any(is_nearer(one) for one in result.experiments)
        none = (
            "none explains a column down to engine noise"
            if better
            else "none fits a column better than the checkpoint itself"
        )
        return f"{ran}; {none}{rows}"
    best = max(explained, key=lambda one: one.gain)
    return f"{ran}; {explains(best)}{rows}"


def explains(one: ExperimentResult) -> str:
    """Say how much of a column's distance from the checkpoint a setting explains."""
    left, before = f"{one.rms_left:.2g}", f"{one.rms_before:.2g}"
    if one.explained:
        return f"{one.setting}: all but {left} of {before} nats rms of `{one.column}` explained"
    return f"{one.setting}: {left} of {before} nats rms of `{one.column}` left"


def posterior_rows(result: DiagnoseResult) -> list[str]:
    """Say for each column how many rows match the weights of each checkpoint."""
    lines = []
    for policy in dict.fromkeys(row["column"] for row in result.weights):
        rows = [row for row in result.weights if row["column"] == policy]
        counts: dict[str, int] = {}
        for row in rows:
            name = max(row["probability"].items(), key=lambda entry: entry[1])[0]
            name = name if row["row_explained"] else "no checkpoint"
            counts[name] = counts.get(name, 0) + 1
        shares = ", ".join(
            f"{plural(count, 'row')} {'matches' if count == 1 else 'match'} {name}"
            for name, count in counts.items()
        )
        switched = sum(row["switch"] is not None for row in rows)
        more = f"; in {plural(switched, 'row')} the weights change midway" if switched else ""
        lines.append(f"{policy}: {shares}{more}")
    return lines
