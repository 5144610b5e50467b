"""A check asks a question about a result; where the answer is bad, it makes a finding.

`@check` makes one from the function that finds it, and `CHECKS.add(...)` adds it: every command
runs the checks of its stage, and screens, pages and `rcdiag explain` read the check's texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from rcdiag.entry import Entry
from rcdiag.registry import Registry
from rcdiag.results import Finding, MetricValue, by_severity
from rcdiag.results.diagnosis import NOTHING_WRONG
from rcdiag.statistics.extremes import NonFinite
from rcdiag.table.naming import Naming
from rcdiag.table.survey import Unobserved
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan

# What a check looks at: the result of a command, or (`config`) a trainer's settings.
STAGES = ("score", "compare", "diagnose", "sweep", "replay", "config")


class CheckInput(Struct, frozen=True, kw_only=True):
    """The input of checks: a result without findings, and what is known beside it."""

    result: Any  # of one of the kinds of rcdiag.results.KINDS
    non_finite: NonFinite = field(default_factory=NonFinite)  # NaN, infinite or positive log-probs
    unobserved: Unobserved = field(default_factory=Unobserved)  # rows without log-probs
    values: Mapping[str, MetricValue] = field(default_factory=dict)  # metrics by name
    plan: Plan | None = None  # the corrections that were computed
    table: Table | None = None  # the user's table

    def where(self, row: int) -> str:
        """Return the file and number of a row, as errors name them."""
        return f"row {row}" if self.table is None else self.table.where(row)

    @property
    def severity_of_presets(self) -> str | None:
        """Return `note` for presets that nobody named on a healthy table; None: the check's own.

        Such a table needs no correction, so that what a preset would do to it is no fault of a run.
        """
        diagnosis = self.result.diagnosis
        healthy = diagnosis is not None and diagnosis.verdict == "healthy"
        return "note" if healthy and self.plan is not None and not self.plan.named else None

    @property
    def unread(self) -> Mapping[str, str]:
        """Return missing column -> unread column of the table that may be the missing one."""
        return {} if self.table is None else self.table.unread

    @property
    def naming(self) -> Naming:
        """Return how columns were found: names taken from other programs, doubts, padding."""
        return Naming() if self.table is None else self.table.naming


class Observation(Struct, frozen=True, kw_only=True):
    """What a check found: a sentence with numbers, and these numbers as evidence."""

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: str | None = None  # None: the check's own
    fix: str | None = None  # None: the check's own


class Check(Struct, frozen=True, kw_only=True):
    """A question about every result of its stages, with the meaning of a finding and its fix."""

    slug: str
    severity: str  # note, warning or error
    stages: tuple[str, ...]  # of STAGES
    asks: str  # the question
    says: str  # what it means when there is a finding, in plain sentences
    fix: str  # what to do then
    example: str = ""
    see: tuple[str, ...] = ()  # names that `rcdiag explain` answers
    source: str = ""
    # None: the code that reads a trainer's settings makes the finding, and puts it into the plan.
    find: Callable[[CheckInput], Iterable[Observation]] | None

    @property
    def name(self) -> str:
        """Return the name in the registry."""
        return self.slug

    def entry(self) -> Entry:
        """Return what the check asks, what a finding means, and what to do then."""
        source = f" Source: {self.source}." if self.source else ""
        where = ", ".join(
            "settings of a trainer" if stage == "config" else f"`rcdiag {stage}`"
            for stage in self.stages
        )
        return Entry(
            what=f"{self.asks} {self.says} Severity: {self.severity}. What to do: {self.fix}. "
            f"Asked of: {where}.{source}",
            example=self.example or None,
            see=self.see,
        )

    def findings(self, given: CheckInput) -> list[Finding]:
        """Return the check's findings about a result."""
        return [
            Finding(
                slug=self.slug,
                severity=seen.severity or self.severity,
                message=seen.message,
                fix=seen.fix or self.fix,
                evidence=seen.evidence,
            )
            for seen in (self.find(given) if self.find is not None else ())
        ]


CHECKS: Registry[Check] = Registry("check")


def check(**fields: Any) -> Callable[[Callable[[CheckInput], Iterable[Observation]]], Check]:
    """Make a check from the function that finds its observations.

    Its slug is the function's name, hyphenated; `fields` are the others of `Check`.
    """

    def of(find: Callable[[CheckInput], Iterable[Observation]]) -> Check:
        return Check(slug=find.__name__.replace("_", "-"), find=find, **fields)

    return of


def findings_of(checks: Iterable[Check], given: CheckInput) -> list[Finding]:
    """Return the findings of a result, by severity: those of its checks and those of its plan."""
    stages = {given.result.kind} if given.plan is None else {given.result.kind, "config"}
    findings = [] if given.plan is None else [*given.plan.findings]
    for check in checks:
        if stages & set(check.stages):
            findings += check.findings(given)
    return by_severity(findings)


def judges_pair(result: Any) -> bool:
    """Tell whether a result has a diagnosis that concerns the numbers of the result.

    The diagnosis of another pair of policies explains nothing in a result of one pair.
    """
    if result.diagnosis is None:
        return False
    pair = {
        "sampler": getattr(result, "behavior", None),
        "trainer": getattr(result, "target", None),
    }
    return None in pair.values() or result.diagnosis.pair == pair


def cause_first(result: Any) -> str | None:
    """Return the advice to fix the named cause first; None unless the verdict is `broken`."""
    diagnosis = result.diagnosis
    if not judges_pair(result) or diagnosis.verdict != "broken" or not diagnosis.causes:
        return None
    return f"fix {diagnosis.causes[0].slug} first: no importance weights repair it"


def advice_of_cause(result: Any) -> str | None:
    """Return what to do about the named cause; None where only rounding noise is named.

    If the verdict is inconclusive, this is the next experiment.
    """
    first = cause_first(result)
    diagnosis = result.diagnosis
    if first or not judges_pair(result):
        return first
    if diagnosis.verdict == "inconclusive":
        return (
            f"find the cause first: {_within(diagnosis.next[0].text)}" if diagnosis.next else None
        )
    named = [cause for cause in diagnosis.causes if cause.slug not in NOTHING_WRONG]
    if not named or not named[0].actions:
        return None
    cause = named[0]
    if diagnosis.verdict == "healthy":
        return f"{cause.slug} explains it, and it costs nothing here"
    return (
        f"{cause.slug} explains it: {_within(cause.actions[0].text)}; meanwhile `rcdiag sweep` "
        "picks a correction, if any helps"
    )


def _within(sentence: str) -> str:
    """Write a sentence as part of another: with a small first letter and no full stop."""
    starts_a_word = sentence[1:2].islower()
    return f"{sentence[0].lower() if starts_a_word else sentence[:1]}{sentence[1:].rstrip('.:')}"
