"""How a result shows itself: as short text in a terminal, as a table in a notebook, as frames."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, field

from rcdiag.errors import RcdiagError
from rcdiag.files import check_document, check_outputs, write_text
from rcdiag.formats import plural
from rcdiag.results.base import FORMAT_VERSION, PROVENANCE, Finding, NumSequences, NumTokens
from rcdiag.results.diagnosis import Diagnosis
from rcdiag.results.doc import Anything, Doc
from rcdiag.results.parts import Short

if TYPE_CHECKING:
    import polars as pl

ROWS, FINDINGS, WIDTH = 8, 5, 100

Draw = Callable[[Any, str | None, float | None], Any]  # result, name, width in inches -> figure
_draw: Draw | None = None


def draw_with(draw: Draw) -> None:
    """Set the function that `result.plot` calls.

    Results are plain data and import no drawing code; `rcdiag.api` connects the two.
    """
    global _draw
    _draw = draw


KindName = Annotated[
    str, Doc("The command that made the result: score, compare, diagnose, sweep or replay.")
]


class Summary(Struct, frozen=True):
    """A summary is a line about a result and a table of its first numbers."""

    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    unit: str  # what one row is: metrics, policies, candidates, presets


class Shown(Short, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole result, which can be printed, shown in a notebook, and turned into frames or JSON."""

    kind: KindName
    format_version: Annotated[
        int,
        Doc(
            "Version of the format of the result's JSON; rcdiag reads its own version and all "
            "earlier ones."
        ),
    ] = FORMAT_VERSION
    provenance: Annotated[dict[str, Anything], PROVENANCE]

    @property
    def findings(self) -> Sequence[Finding]:
        """Return what is wrong or worth knowing."""
        return ()

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Return the verdict on the table; None for a kind of result without one."""
        return None

    def _summary(self) -> Summary:
        """Return a line about the result, and its first numbers."""
        raise NotImplementedError

    def frame(self, name: str | None = None) -> pl.DataFrame:
        """Return the result as a polars frame.

        All: `tidy`, one row per metric and step, which is the default and has the same columns for
        every kind (kind, step, policies, name, metric, value, low, high, level; step is null for
        the whole table), and `findings`. score: `metrics`, `corrections`, `logged`. compare:
        `pairs`, `policies`, `ladder`. sweep: `settings`, `candidates`. replay: `presets`, `logged`.
        """
        from rcdiag.results.frames import frame

        return frame(self, name)

    def to_json(self) -> str:
        """Return the result as JSON, as `--json` prints it."""
        from rcdiag.results import to_json

        return to_json(self)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the result as JSON, which `rcdiag.load_result` reads back.

        An existing file is overwritten only with `force`.
        """
        check_document(Path(path))
        check_outputs([Path(path)], force=force)
        write_text(Path(path), self.to_json())

    def plot(self, name: str | None = None, *, width: float | None = None) -> Any:
        """Draw one figure with matplotlib: `result.plot("steps")`.

        `steps` draws all figures over the training steps in one; every figure of `--plots` has its
        own name. Without a name, or with a wrong one, the error lists those of this result. `width`
        is in inches.
        """
        if _draw is None:
            raise RcdiagError(
                "no drawing code is loaded", hint="`import rcdiag.api`, which loads it"
            )
        return _draw(self, name, width)

    def __repr__(self) -> str:
        summary = self._summary()
        cells = [summary.columns, *summary.rows[:ROWS]] if summary.rows else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [f"rcdiag {self.kind}: {summary.about}"]
        if self.diagnosis is not None:
            lines += textwrap.wrap(_judged(self.diagnosis), WIDTH, subsequent_indent="  ")
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
        summary = self._summary()
        judged = "" if self.diagnosis is None else f"<p>{escape(_judged(self.diagnosis))}</p>"
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
    """Write the verdict, its causes and the summary, in a sentence or two."""
    causes = ", ".join(cause.slug for cause in diagnosis.causes)
    return f"{diagnosis.verdict}{f' ({causes})' if causes else ''}: {diagnosis.summary}"


def _more(count: int, unit: str) -> list[str]:
    return [f"  ... and {count} more {unit}"] if count > 0 else []


class Measured(Shown, frozen=True, kw_only=True):
    """A result that measures a table: its size, the findings, and the diagnosis."""

    num_sequences: NumSequences
    num_tokens: NumTokens
    diagnosis: Annotated[
        Diagnosis | None,
        Doc(
            "The verdict on the table and its causes, the same from every command; null in "
            "documents of versions that made none.",
            see=("verdict", "causes"),
            added=True,
        ),
    ] = None
    findings: Annotated[
        list[Finding],
        Doc(
            "What the reader should know, the most serious first.",
            see=("slug", "severity", "evidence"),
        ),
    ] = field(default_factory=list)

    @property
    def size(self) -> str:
        """Write the numbers of sequences and tokens."""
        return f"{plural(self.num_sequences, 'sequence')}, {plural(self.num_tokens, 'token')}"
