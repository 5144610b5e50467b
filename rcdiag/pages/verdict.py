"""A verdict answers a command in one word and one sentence; terminal and page share it."""

from __future__ import annotations

from dataclasses import dataclass

from rcdiag.results import SEVERITIES, Finding, worst_severity

WORDS = {"error": "bad", "warning": "doubtful"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one word and one sentence."""

    level: str  # ok, warning or error
    word: str
    sentence: str


def by_findings(findings: list[Finding], sentence: str) -> Verdict:
    """Return the verdict by the gravest finding; notes do not count against a run."""
    counts = [
        f"{count} {severity}{'s' if count > 1 else ''}"
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    worst = worst_severity(findings)
    level = worst if worst in WORDS else "ok"
    return Verdict(
        level, WORDS.get(level, "fine"), f"{sentence}; {', '.join(counts) or 'no findings'}"
    )
