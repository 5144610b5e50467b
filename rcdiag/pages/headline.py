"""The headline of every result: verdict, cause, what to do, why, and the numbers that decide.

The terminal and the page both render it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.diagnosis.change_of_mismatch import sentence
from rcdiag.diagnosis.ruled_out import RULED_OUT_BY
from rcdiag.formats import measured, number, plural, with_interval
from rcdiag.results import SEVERITIES, Action, Diagnosis, Finding, MetricValue, NamedCause

if TYPE_CHECKING:
    from rcdiag.results import Result
    from rcdiag.results.diagnose import ExperimentResult

# Why a cause is ruled out that only an experiment can rule out.
BY_TRIAL = "tried with the checkpoint, and does not explain the mismatch"
NOT_JUDGED = "not judged"  # the verdict of a result that holds none
# The level whose colour a verdict has.
LEVELS = {"healthy": "ok", "correctable": "warning", "broken": "error", "inconclusive": "unknown"}
ACTIONS, FACTS = 3, 2


# What each verdict means for whoever trains on these numbers.
MEANINGS = {
    "healthy": "Nothing to repair: the mismatch is rounding noise. Train without a correction.",
    "correctable": "The mismatch is real, and the recorded distribution is the one that sampled: "
    "importance weights are valid. Remove the cause where you can.",
    "broken": "Something is wrong that no importance weights repair. Fix it before you trust a "
    "number made from these log-probs.",
    "inconclusive": "The table does not show whether anything is wrong.",
}
ONE_POLICY = "Only one policy is recorded: nothing was compared."
# Where a cause is named and the verdict is `inconclusive`: what is open, in a few words, and in a
# sentence.
IDENTICAL = "columns-identical"
OPEN_PAIR = "the other policy"
OPEN_CAUSE = "its cause"
OPEN_ORIGIN = "a copy, or one engine for both"
OPEN_NAME = "too little to act on"
KNOWN = {
    OPEN_PAIR: ONE_POLICY,
    OPEN_CAUSE: "The two sides differ; the cause is open, and with it whether importance weights "
    "are valid.",
    OPEN_ORIGIN: "The columns are equal; whether one engine made both or one was copied is open.",
    OPEN_NAME: "The named cause is a guess: the evidence is too weak to act on.",
}


class Headline(Struct, frozen=True, kw_only=True):
    """The first lines of a result, as texts that are ready to be shown."""

    level: str  # ok, warning, error or unknown
    verdict: str
    cause: str  # the causes by name, with how sure the first is
    slugs: Sequence[str]  # names of the causes
    means: str  # what the verdict means, in a sentence or two
    about: str  # the table and its size
    summary: str
    actions: Sequence[Action]
    evidence: Sequence[str]
    also: Sequence[str]  # further causes, a sentence each
    steps: str  # what moved over the training steps; empty without several
    change: str  # what a change of the mismatch over them is made of; empty without one
    ruled_out: Sequence[tuple[str, str]]  # causes, and what speaks against each
    next: Sequence[Action]
    numbers: str  # the command's own answer


def answer(result: Result) -> str:
    """Say in a sentence without a full stop what a command found out."""
    words = import_module(f"rcdiag.pages.{result.kind}.words")  # of other kinds nothing is loaded
    sentence: str = words.answer(result)
    return sentence


def headline(result: Result, sentence: str) -> Headline:
    """Write the headline of a result; `sentence` is the command's own answer."""
    numbers = f"{sentence}; {counted(result.findings)}"
    diagnosis = result.diagnosis
    if diagnosis is None:
        return Headline(
            level="unknown",
            verdict=NOT_JUDGED,
            cause="",
            slugs=(),
            means="",
            about=_about(result),
            summary="The version of rcdiag that made this result named no causes.",
            actions=(),
            evidence=(),
            also=(),
            steps="",
            change="",
            ruled_out=(),
            next=(),
            numbers=numbers,
        )
    first = diagnosis.causes[0] if diagnosis.causes else None
    return Headline(
        level=level_of(diagnosis),
        verdict=diagnosis.verdict,
        cause=_names(diagnosis),
        slugs=[cause.slug for cause in diagnosis.causes],
        means=_means(diagnosis),
        about=_about(result),
        summary=diagnosis.summary,
        actions=_actions(diagnosis.causes),
        evidence=[fact_text(entry) for entry in first.evidence] if first else (),
        also=[f"{cause.slug}: {cause.message}" for cause in diagnosis.causes[1:]],
        steps="" if diagnosis.over_steps is None else diagnosis.over_steps.says,
        change=_change(diagnosis),
        ruled_out=[(slug, _against(slug, result)) for slug in diagnosis.ruled_out],
        next=diagnosis.next,
        numbers=numbers,
    )


def _change(diagnosis: Diagnosis) -> str:
    """Say what a change of the mismatch over the steps is made of."""
    change = None if diagnosis.over_steps is None else diagnosis.over_steps.change
    return "" if change is None else sentence(change)


def _against(slug: str, result: Result) -> str:
    """Say what rules a cause out: the best experiment that tried it, or the table.

    Of a training log nothing is said: its relations speak against many causes at once.
    """
    if getattr(result, "logs", ()):
        return ""
    experiments: Sequence[ExperimentResult] = getattr(result, "experiments", ())
    tried = [one for one in experiments if one.cause == slug]
    if not tried:
        return RULED_OUT_BY.get(slug, BY_TRIAL)
    best = min(tried, key=lambda one: one.rms_left)
    left, before = number(best.rms_left), number(best.rms_before)
    if best.rms_left > 1.02 * best.rms_before:
        return f"supposing it makes the difference larger: {left} nats rms instead of {before}"
    if best.rms_left > 0.98 * best.rms_before:
        return f"supposing it explains nothing: {left} of {before} nats rms are left"
    return f"supposing it leaves {left} of {before} nats rms unexplained"


def by_reason(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Put names with one reason beside each other: reason -> names."""
    grouped: dict[str, list[str]] = {}
    for name, reason in names:
        grouped.setdefault(reason, []).append(name)
    return grouped


def counted(findings: Sequence[Finding]) -> str:
    """Count the findings by severity, the gravest first."""
    counts = [
        plural(count, severity)
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    return ", ".join(counts) or "no findings"


def _names(diagnosis: Diagnosis) -> str:
    """Name the causes: `stale-weights, 97% sure; and stored-bfloat16`."""
    if not diagnosis.causes:
        return ""
    first, *others = diagnosis.causes
    left = open_beside(diagnosis)
    known = "" if left is None else f"; open: {left}" if left != OPEN_NAME else f": {left}"
    more = f"; and {', '.join(cause.slug for cause in others)}" if others else ""
    return f"{first.slug}, {first.confidence:.0%} sure{known}{more}"


def open_beside(diagnosis: Diagnosis) -> str | None:
    """Say what is open although a cause is named; None where the verdict is not inconclusive.

    With one policy it is the comparison that is open, which the summary says.
    """
    if diagnosis.verdict != "inconclusive" or not diagnosis.causes or not compared(diagnosis):
        return None
    first = diagnosis.causes[0]
    if not compared(diagnosis):
        return OPEN_PAIR
    if first.slug == IDENTICAL:
        return OPEN_ORIGIN
    return OPEN_NAME if first.verdict == "broken" else OPEN_CAUSE


def _means(diagnosis: Diagnosis) -> str:
    """Say what the verdict means; if it is inconclusive, what is open and what settles it."""
    left = open_beside(diagnosis)
    if not compared(diagnosis):
        means = ONE_POLICY
    else:
        means = MEANINGS[diagnosis.verdict] if left is None else KNOWN[left]
    settled = diagnosis.verdict == "inconclusive" and diagnosis.next
    return f"{means}{' The next step below settles it.' if settled else ''}"


def level_of(diagnosis: Diagnosis) -> str:
    """Return the level whose colour a diagnosis has: nothing is green if nothing was compared."""
    if compared(diagnosis) or diagnosis.verdict == "broken":
        return LEVELS[diagnosis.verdict]
    return "unknown"


def compared(diagnosis: Diagnosis) -> bool:
    """Tell whether two policies were compared, without which nothing is healthy."""
    if diagnosis.pair is None:  # of a training log
        return bool(diagnosis.causes)
    return "trainer" in diagnosis.pair


def _actions(causes: Sequence[NamedCause]) -> list[Action]:
    """Return the first actions: those of the first cause, and one of each further fault."""
    first = list(causes[0].actions) if causes else []
    others = [cause.actions[0] for cause in causes[1:] if cause.actions]
    own = first[: max(ACTIONS - len(others), 1)]
    return [*own, *others][:ACTIONS]


def dump_name(result: Result) -> str:
    """Return the name of the dump's first file, and how many more there are."""
    names = [Path(str(path)).name for path in result.provenance.get("dump", [])]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "table"


def _about(result: Result) -> str:
    """Name the table, and say how large it is."""
    table = dump_name(result)
    if logs := getattr(result, "logs", ()):
        return f"{table}, {plural(sum(log.num_steps for log in logs), 'step')}"
    left_out = getattr(result, "rows_left_out", 0)
    without = f" ({left_out:,} left out)" if left_out else ""
    rows = result.provenance.get("rows", 0)  # of the whole table, of which a part may be read
    of_all = f" of {rows:,}" if rows > result.num_sequences else ""
    noun = "response" if max(rows, result.num_sequences) == 1 else "responses"
    size = f"{result.num_sequences:,}{of_all} {noun}{without}, "
    size += plural(result.num_tokens, "token")
    return f"{table}, {size}"


def fact_text(entry: Mapping[str, Any]) -> str:
    """Write an entry of evidence in a line: `rms log-ratio: 0.0108 (rounding)`."""
    values = {name: value for name, value in entry.items() if name not in ("name", "reads")}
    low, high = values.get("low"), values.get("high")
    written = []
    for name, value in values.items():
        if name in ("low", "high") and low is not None and high is not None:
            continue  # the ends of an interval are written after its number
        # The number that the entry is named after stands without a name of its own.
        if name == "value" or name in str(entry["name"]).split():
            ends = [end for end in (low, high) if isinstance(end, float) and isfinite(end)]
            known = isinstance(value, float) and len(ends) == 2
            interval = MetricValue(value=value, low=low, high=high)
            written.append(with_interval(interval) if known else _value(value))
        elif name[-1:].isdigit():  # a digit would run into the value: `step_4 = 0`
            written.append(f"{name} = {_value(value)}")
        else:
            written.append(f"{name.replace('_', ' ')} {_value(value)}")
    if not written and low is not None and high is not None:
        written.append(f"{_value(low)} to {_value(high)}")
    values_of = f"{entry['name']}: {', '.join(written)}"
    # Two brackets in a row read badly: `1.02 (1.01 to 1.03), not 1`.
    bare = values_of.endswith(")")
    return f"{values_of}, {entry['reads']}" if bare else f"{values_of} ({entry['reads']})"


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ", ".join(map(_value, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def finding_parts(finding: Finding, result: Result) -> tuple[str, str]:
    """Say a finding in two clauses: the numbers, and what to do about them.

    Numbers beyond their guide are given without limits and sources, which the message has. If the
    remedy is to fix the named cause, the text refers to its actions.
    """
    mismatch: Mapping[str, MetricValue] = getattr(result, "mismatch", {})
    names = finding.evidence
    if names and all(name in mismatch for name in names):
        what = ", ".join(f"{name} {measured(mismatch[name])[0]}" for name in names)
    else:
        what = CLAUSE.split(finding.message, maxsplit=1)[0]
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    if causes and finding.fix.startswith((f"{causes[0].slug} explains", f"fix {causes[0].slug}")):
        return what, f"see {'do 1' if causes[0].actions else causes[0].slug}"
    return what, CLAUSE.split(finding.fix, maxsplit=1)[0]


# The end of the clause that says the most: a colon, a semicolon or brackets.
CLAUSE = re.compile(r"[:;] | \(")


def more(result: Result) -> str:
    """Say how to see what the first screen leaves out."""
    parts = ["all numbers, limits: -v"]
    verdict = "" if result.diagnosis is None else result.diagnosis.verdict
    if result.kind == "score" and verdict == "correctable":
        parts.append("pick a correction: rcdiag sweep")
    parts.append("page: --html")
    return "   ".join(parts)
