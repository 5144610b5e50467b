"""Terminal and page say this about the experiments of a diagnosis."""

from __future__ import annotations

from rcdiag.results import DiagnoseResult


def answer(result: DiagnoseResult) -> str:
    """Say what the experiments explain."""
    if result.trainer_model is None:
        return "told by the table alone; --model runs experiments"
    told = [one for one in result.experiments if one.explained]
    ran = f"{len(result.experiments)} experiments in {result.duration:.0f} s"
    if not told:
        return f"{ran}; none was needed beside the model's own log-probs, or none explains a column"
    best = max(told, key=lambda one: one.gain)
    return f"{ran}; {best.setting} leaves {best.rms_left:.2g} of {best.rms_before:.2g} nats (rms)"


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
