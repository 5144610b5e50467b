"""Results print as a short text in a terminal and a table in a notebook; frames on demand."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcdiag.files import write_text
from rcdiag.results.base import Finding, MetricValue, written_interval

if TYPE_CHECKING:
    import polars as pl

    from rcdiag.results.compare import CompareResult
    from rcdiag.results.convert import ConvertResult
    from rcdiag.results.diagnose import DiagnoseResult
    from rcdiag.results.diagnosis import Diagnosis
    from rcdiag.results.replay import ReplayResult
    from rcdiag.results.score import ScoreResult
    from rcdiag.results.sweep import SweepResult

ROWS, FINDINGS, WIDTH = 8, 5, 100
# Levels in the order in which a reader wants to see them: metrics that are wrong, updates that
# could be taken.
METRIC_LEVELS = ("error", "warning", "unknown", "ok")
UPDATE_LEVELS = ("ok", "note", "warning", "error", "cannot judge")


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary tells what a result is about and has a table of its first numbers."""

    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    unit: str  # what one row is: metrics, policies, candidates, presets


class Shown:
    """All results can print, show in a notebook, and become a frame or a document."""

    __slots__ = ()

    if TYPE_CHECKING:
        kind: str

        @property
        def findings(self) -> list[Finding]:
            """Return what is out of order."""
            ...

    def frame(self, name: str | None = None) -> pl.DataFrame:
        """Give the result as a polars frame.

        All: `tidy`, one row per metric and step, which is the default and has the same columns for
        every kind (kind, step, policies, name, metric, value, low, high, level; step is null for
        the whole table), and `findings`. score: `metrics`, `corrections`, `logged`. compare:
        `pairs`, `policies`, `ladder`. sweep: `settings`, `candidates`. replay: `presets`, `logged`.
        """
        from rcdiag.results.frames import frame

        return frame(self, name)

    def to_json(self) -> str:
        """Give the result document, as `--json` prints it."""
        from rcdiag.results import to_json

        return to_json(self)  # type: ignore[arg-type]

    def save(self, path: str | Path) -> None:
        """Write the result document, which `rcdiag.load_result` reads back."""
        write_text(Path(path), self.to_json())

    def plot(self, name: str, *, width: float | None = None) -> Any:
        """Draw a figure as a matplotlib figure: `result.plot("steps")`.

        `steps` draws all figures over the training steps in one; every figure of `--plots` has its
        own name, and a wrong name lists those of this result. `width` is in inches.
        """
        # Drawing stands above results: it is looked up by its name, and only when it is asked for.
        return importlib.import_module("rcdiag.pages.plot").plot(self, name, width)

    def __repr__(self) -> str:
        summary = SUMMARIES[self.kind](self)
        cells = [summary.columns, *summary.rows[:ROWS]] if summary.rows else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [f"rcdiag {self.kind}: {summary.about}"]
        diagnosis = getattr(self, "diagnosis", None)
        if diagnosis is not None:
            lines += textwrap.wrap(_judged(diagnosis), WIDTH, subsequent_indent="  ")
        for row in cells:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(padded).rstrip())
        lines += _more(len(summary.rows) - ROWS, summary.unit)
        for finding in self.findings[:FINDINGS]:
            text = f"{finding.severity}  {finding.slug}: {finding.message}"
            lines.append(textwrap.shorten(text, WIDTH, placeholder=" ..."))
        lines += _more(len(self.findings) - FINDINGS, "findings")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        summary = SUMMARIES[self.kind](self)
        diagnosis = getattr(self, "diagnosis", None)
        judged = "" if diagnosis is None else f"<p>{escape(_judged(diagnosis))}</p>"
        head = "".join(f"<th>{escape(name)}</th>" for name in summary.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in summary.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        findings = "".join(
            f"<li><b>{escape(finding.severity)}</b> <code>{escape(finding.slug)}</code> "
            f"{escape(finding.message)} <i>{escape(finding.fix)}</i></li>"
            for finding in self.findings
        )
        return (
            f"<div><p><b>rcdiag {escape(self.kind)}</b> {escape(summary.about)}</p>{judged}"
            f"{table if body else ''}<ul>{findings}</ul></div>"
        )


def _judged(diagnosis: Diagnosis) -> str:
    """Say the verdict, its causes and what shows them, in a sentence or two."""
    causes = ", ".join(cause.slug for cause in diagnosis.causes)
    return f"{diagnosis.verdict}{f' ({causes})' if causes else ''}: {diagnosis.summary}"


def _more(count: int, unit: str) -> list[str]:
    return [f"  ... and {count} more {unit}"] if count > 0 else []


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(value: MetricValue) -> str:
    return written_interval(value, _number)


def _size(
    result: ScoreResult | CompareResult | DiagnoseResult | SweepResult | ReplayResult,
) -> str:
    return f"{result.num_sequences:,} sequences, {result.num_tokens:,} tokens"


def _of_score(result: ScoreResult) -> Summary:
    """Summarise the metrics that have a guide, the gravest first."""
    steps = f", {len(result.steps)} steps" if result.steps else ""
    rows = [
        (name, _number(value.value), _interval(value), level)
        for level in METRIC_LEVELS
        for name, value in result.mismatch.items()
        if value.level == level
    ]
    about = f"{result.behavior} -> {result.target}, {_size(result)}{steps}"
    return Summary(about, ("metric", "value", "95% interval", "level"), rows, "metrics")


def _of_compare(result: CompareResult) -> Summary:
    """Summarise the policies, the one that is nearest to the sampler first."""
    order = sorted(result.policies.items(), key=lambda item: item[1].behind.value or 0.0)
    rows = [
        (
            name,
            policy.role,
            policy.setup,
            _number(policy.behind.value),
            "nearest" * policy.may_be_nearest,
        )
        for name, policy in order
    ]
    columns = ("policy", "role", "about", "behind, nats per token", "")
    about = f"{len(result.policies)} policies, {_size(result)}"
    return Summary(about, columns, rows, "policies")


def _of_diagnose(result: DiagnoseResult) -> Summary:
    """Summarise the experiments, the best of each column first."""
    rows = [
        (one.cause, one.setting, _number(one.rms_before), _number(one.rms_left))
        for one in result.experiments
    ]
    model = f", with {result.trainer_model}" if result.trainer_model else ""
    columns = ("cause", "supposed", "rms before", "rms left")
    return Summary(f"{_size(result)}{model}", columns, rows, "experiments")


def _of_sweep(result: SweepResult) -> Summary:
    """Summarise the candidates that are not refused, the best first."""
    advice = result.recommendation
    ranked = sorted(
        (candidate for candidate in advice.candidates if candidate.rank is not None),
        key=lambda candidate: candidate.rank or 0,
    )
    rows = [
        (
            str(candidate.rank),
            candidate.name,
            _number(candidate.efficiency.value),
            _interval(candidate.efficiency),
        )
        for candidate in ranked
    ]
    choice = f" {advice.choice}" if advice.choice else ""
    about = f"{result.behavior} -> {result.target}, {_size(result)}: {advice.answer}{choice}"
    return Summary(about, ("rank", "candidate", "efficiency", "95% interval"), rows, "candidates")


def _of_replay(result: ReplayResult) -> Summary:
    """Summarise the presets with their health, those with a safe update first."""
    rows = [
        (
            name,
            _number(replay.loss),
            f"{replay.kept_tokens / max(result.num_tokens, 1):.1%}",
            _number(replay.coefficients.norm),
            replay.health.verdict,
        )
        for name, replay in result.presets.items()
    ]
    rows.sort(key=lambda row: UPDATE_LEVELS.index(row[-1]))
    step = "" if result.step is None else f"step {result.step}, "
    about = f"{result.trainer}, {result.policy_loss} loss, {step}{_size(result)}"
    return Summary(about, ("preset", "loss", "kept", "|coefficients|", "health"), rows, "presets")


def _of_convert(result: ConvertResult) -> Summary:
    """Summarise what a conversion changed, and what the table lacks."""
    rows = [("changed", text, str(rows or "all")) for text, rows in result.changes.items()]
    rows += [("lacking", f"{name}: {way}", "") for name, way in result.lacking.items()]
    cut = [(what, textwrap.shorten(text, WIDTH, placeholder=" ..."), n) for what, text, n in rows]
    policies = ", ".join(result.policies) or "no policies"
    about = f"{result.output}, {result.rows:,} rows, {result.tokens:,} tokens, {policies}"
    return Summary(about, ("", "what", "rows"), cut, "changes")


SUMMARIES: dict[str, Callable[[Any], Summary]] = {
    "score": _of_score,
    "compare": _of_compare,
    "diagnose": _of_diagnose,
    "sweep": _of_sweep,
    "replay": _of_replay,
    "convert": _of_convert,
}
