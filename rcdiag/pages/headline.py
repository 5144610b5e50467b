"""The headline of a result: verdict, cause, what to do, why, and the most important numbers.

The terminal and the page both show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.diagnosis.change_of_mismatch import sentence as change_sentence
from rcdiag.diagnosis.ruled_out import RULED_OUT_BY
from rcdiag.formats import after_colon, listed, measured, number, plural, with_interval
from rcdiag.results import SEVERITIES, Action, Diagnosis, Finding, MetricValue, NamedCause
from rcdiag.results.log_summary import LogSummary

if TYPE_CHECKING:
    from rcdiag.results import Result
    from rcdiag.results.diagnose import ExperimentResult

# The reason shown for a ruled-out cause that only an experiment can rule out.
BY_TRIAL = "tried with the checkpoint, and does not explain the mismatch"
NOT_JUDGED = "not judged"  # shown for a result without a verdict
# Verdict -> the level whose colour it has.
LEVELS = {"healthy": "ok", "correctable": "warning", "broken": "error", "inconclusive": "unknown"}
ACTIONS, FACTS = 3, 2  # shown at most


# What each verdict means for training on these data.
MEANINGS = {
    "healthy": "Nothing to repair: the mismatch is rounding noise. Train without a correction.",
    "correctable": "The mismatch is real, but tokens were sampled from the recorded distribution, "
    "so importance weights are valid. Remove the cause where you can.",
    "broken": "There is a fault that no importance weights repair. Fix it before you trust a "
    "number made from these log-probs.",
    "inconclusive": "The table does not show whether anything is wrong.",
}
ONE_POLICY = "Only one policy is recorded: nothing was compared."
IDENTICAL = "columns-identical"
GENERIC = ("forwards-differ", "context-differs")  # causes that say only that the two sides differ
# What is still open if a cause is named although the verdict is `inconclusive`.
OPEN_CAUSE = "its cause"
OPEN_SAMPLER = "whether weights are valid"
OPEN_ORIGIN = "a copy, or one engine for both"
OPEN_NAME = "too little to act on"
KNOWN = {  # what is open -> the sentence below the verdict
    OPEN_CAUSE: "The two sides differ, but the cause is open, and therefore also whether "
    "importance weights are valid.",
    OPEN_SAMPLER: "The cause is known, but not whether the recorded distribution sampled, and "
    "therefore not whether importance weights are valid.",
    OPEN_ORIGIN: "The columns are equal; either one engine made both, or one is a copy.",
    OPEN_NAME: "The named cause is a guess: the evidence is too weak to act on.",
}


class Headline(Struct, frozen=True, kw_only=True):
    """The first lines of a result, as text that is ready to be shown."""

    level: str  # ok, warning, error or unknown
    verdict: str
    about: str  # the table and its size
    summary: str
    numbers: str  # the command's own answer, and the number of findings
    cause: str = ""  # names of the causes, with the confidence of the first
    slugs: Sequence[str] = ()  # names of the causes
    means: str = ""  # what the verdict means, in a sentence or two
    actions: Sequence[Action] = ()
    evidence: Sequence[str] = ()
    also: Sequence[str] = ()  # further causes, a sentence each
    possible: Sequence[str] = ()  # causes that the means of a log cannot tell from the first
    log: str = ""  # verdict of the trainer's log that the table is compared with
    steps: str = ""  # what moved over the training steps; "" for a single step
    change: str = ""  # parts of a change over the steps: length, uncertainty, mismatch per token
    ruled_out: Sequence[tuple[str, str]] = ()  # causes, and the evidence against each
    next: Sequence[Action] = ()


def answer(result: Result) -> str:
    """Say in a sentence without a full stop what a command found."""
    words = import_module(f"rcdiag.pages.{result.kind}.words")  # imports only what is needed
    sentence: str = words.answer(result)
    return sentence


def headline(result: Result, sentence: str) -> Headline:
    """Return the headline of a result; `sentence` is the command's own answer."""
    diagnosis = result.diagnosis
    numbers = with_findings(sentence, result, result.findings)
    if diagnosis is None:
        return Headline(
            level="unknown",
            verdict=NOT_JUDGED,
            about=_about(result),
            summary="The version of rcdiag that made this result named no causes.",
            numbers=numbers,
        )
    first = diagnosis.causes[0] if diagnosis.causes else None
    actions = _actions(diagnosis.causes)
    commands = {action.command for action in actions if action.command}
    over_steps = diagnosis.over_steps
    return Headline(
        level=level_of(diagnosis),
        verdict=diagnosis.verdict,
        cause=_named_causes(diagnosis),
        slugs=[cause.slug for cause in diagnosis.causes],
        means=_means(diagnosis),
        about=_about(result),
        summary=diagnosis.summary,
        actions=actions,
        evidence=[fact_text(entry) for entry in first.evidence] if first else (),
        also=[f"{cause.slug}: {after_colon(cause.message)}" for cause in diagnosis.causes[1:]],
        possible=first.also_possible if first and _names_a_fault_of_a_log(diagnosis) else (),
        log=_verdict_of_log(result, diagnosis),
        steps="" if over_steps is None else over_steps.says,
        change="" if not (over_steps and over_steps.change) else change_sentence(over_steps.change),
        ruled_out=[
            (slug, diagnosis.ruled_out_by.get(slug) or _why_ruled_out(slug, result))
            for slug in diagnosis.ruled_out
        ],
        # An action is not repeated, unless the text says that the next step settles the question.
        next=[
            step
            for step in diagnosis.next
            if diagnosis.verdict == "inconclusive" or step.command not in commands
        ],
        numbers=numbers,
    )


def _names_a_fault_of_a_log(diagnosis: Diagnosis) -> bool:
    return diagnosis.pair is None and diagnosis.verdict != "healthy"


def _verdict_of_log(result: Result, diagnosis: Diagnosis) -> str:
    logged = getattr(result, "logged", None)
    if logged is None:
        return ""
    from rcdiag.pages.score.logged import verdict_of_log  # needed by one command only

    return verdict_of_log(logged, diagnosis.verdict, alone=not compared(diagnosis))


def _why_ruled_out(slug: str, result: Result) -> str:
    """Say what rules a cause out: the best experiment that supposed it, or the table."""
    experiments: Sequence[ExperimentResult] = getattr(result, "experiments", ())
    tried = [one for one in experiments if one.cause == slug]
    if not tried:
        return RULED_OUT_BY.get(slug, BY_TRIAL)
    best = min(tried, key=lambda one: one.rms_left)
    left, before = number(best.rms_left), number(best.rms_before)
    if best.rms_left > 1.02 * best.rms_before:
        return f"supposing it makes the difference larger: {left} nats rms instead of {before}"
    if best.rms_left > 0.98 * best.rms_before:
        return f"supposing it explains nothing: {left} of {before} nats rms remain"
    return f"supposing it leaves {left} of {before} nats rms unexplained"


def by_reason(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by their reason: reason -> names."""
    grouped: dict[str, list[str]] = {}
    for name, reason in names:
        grouped.setdefault(reason, []).append(name)
    return grouped


def with_findings(sentence: str, result: Result, findings: Sequence[Finding]) -> str:
    """Add the number of findings to a command's answer, where it says something."""
    # "no findings" would read as "no fault" beside the verdict `broken`.
    diagnosis = result.diagnosis
    silent = diagnosis is not None and diagnosis.verdict == "broken" and not findings
    silent |= bool(getattr(result, "logs", ()))  # a log has relations in the place of findings
    return sentence if silent else f"{sentence}; {counted(findings)}"


def counted(findings: Sequence[Finding]) -> str:
    """Count the findings by severity, the most severe first."""
    counts = [
        plural(count, severity)
        for severity in reversed(SEVERITIES)
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    return ", ".join(counts) or "no findings"


def _named_causes(diagnosis: Diagnosis) -> str:
    """List the causes: `stale-weights, 97% sure; and stored-bfloat16`."""
    if not diagnosis.causes:
        return ""
    first, *others = diagnosis.causes
    left = open_question(diagnosis)
    known = "" if left is None else f"; open: {left}" if left != OPEN_NAME else f": {left}"
    more = f"; and {', '.join(cause.slug for cause in others)}" if others else ""
    return f"{first.slug}, {first.confidence:.0%} sure{known}{more}"


def open_question(diagnosis: Diagnosis) -> str | None:
    """Say what is open although a cause is named; None if the verdict is not inconclusive.

    With one policy the comparison itself is open, which the summary says.
    """
    if diagnosis.verdict != "inconclusive" or not diagnosis.causes or not compared(diagnosis):
        return None
    first = diagnosis.causes[0]
    if first.slug == IDENTICAL:
        return OPEN_ORIGIN
    if first.verdict == "broken":
        return OPEN_NAME
    return OPEN_CAUSE if first.slug in GENERIC else OPEN_SAMPLER


def _means(diagnosis: Diagnosis) -> str:
    """Say what the verdict means; if inconclusive, what is open and what would settle it."""
    left = open_question(diagnosis)
    if not compared(diagnosis):
        means = ONE_POLICY
    else:
        means = MEANINGS[diagnosis.verdict] if left is None else KNOWN[left]
    settled = diagnosis.verdict == "inconclusive" and diagnosis.next
    return f"{means}{' The next step below settles it.' if settled else ''}"


def level_of(diagnosis: Diagnosis) -> str:
    """Return the level of a diagnosis, for its colour; never ok if nothing was compared."""
    if compared(diagnosis) or diagnosis.verdict == "broken":
        return LEVELS[diagnosis.verdict]
    return "unknown"


def compared(diagnosis: Diagnosis) -> bool:
    """Tell whether two policies were compared."""
    if diagnosis.pair is None:  # a training log
        return bool(diagnosis.causes)
    return "trainer" in diagnosis.pair


def _actions(causes: Sequence[NamedCause]) -> list[Action]:
    """Return the first actions: those of the first cause, and one for each further fault."""
    first = list(causes[0].actions) if causes else []
    others = [cause.actions[0] for cause in causes[1:] if cause.actions]
    own = first[: max(ACTIONS - len(others), 1)]
    return [*own, *others][:ACTIONS]


def dump_name(result: Result) -> str:
    """Return the name of the dump's first file, and the number of further files."""
    names = [Path(str(path)).name for path in result.provenance.get("dump", [])]
    return listed(names) or "table"


def logged_steps(logs: Sequence[LogSummary]) -> str:
    """Say how many steps the logs of runs have."""
    counts = [log.num_steps for log in logs]
    if len(counts) == 1:
        return plural(counts[0], "step")
    if len(set(counts)) == 1:
        return f"{len(counts)} runs of {plural(counts[0], 'step')}"
    return f"runs of {', '.join(map(str, counts))} steps"


def _about(result: Result) -> str:
    """Return the name and size of what the diagnosis judges: the table, or the part of it read."""
    table = dump_name(result)
    if logs := getattr(result, "logs", ()):
        return f"{table}, {logged_steps(logs)}"
    left_out = getattr(result, "rows_left_out", 0)
    # The tokens are those of all rows, so the rows that numbers leave out come after them.
    without = f", {plural(left_out, 'row')} left out" if left_out else ""
    rows = result.provenance.get("rows", 0)  # of the whole table; the command may read a part
    one_step = getattr(result, "step", None) is not None and rows > result.num_sequences
    # A replay's numbers are of one step, its diagnosis is of the whole table.
    read = rows if one_step else result.num_sequences
    judged = None if result.diagnosis is None else result.diagnosis.judged_rows
    of_these = f" ({judged:,} diagnosed)" if judged is not None and judged < read else ""
    of_all = f" of {rows:,}" if rows > read else ""
    noun = "response" if max(rows, read) == 1 else "responses"
    tokens = "" if one_step else f", {plural(result.num_tokens, 'token')}"
    return f"{table}, {read:,}{of_all} {noun}{of_these}{tokens}{without}{_judged_pair(result)}"


def _judged_pair(result: Result) -> str:
    """Name the policies that the diagnosis judges where the command compares others."""
    pair = {} if result.diagnosis is None else result.diagnosis.pair or {}
    compared = {getattr(result, "behavior", None), getattr(result, "target", None)} - {None}
    if "trainer" not in pair or not compared or compared == set(pair.values()):
        return ""
    return f"; verdict on {pair['sampler']} and {pair['trainer']}"


def fact_text(entry: Mapping[str, Any]) -> str:
    """Format an entry of evidence as a line: `rms log-ratio: 0.0108 (rounding)`."""
    values = {name: value for name, value in entry.items() if name not in ("name", "reads")}
    low, high = values.get("low"), values.get("high")
    written = []
    for name, value in values.items():
        if name in ("low", "high") and low is not None and high is not None:
            continue  # written after the number that the interval belongs to
        # The value that the entry is named after needs no name.
        if name == "value" or name in str(entry["name"]).split():
            ends = [end for end in (low, high) if isinstance(end, float) and isfinite(end)]
            known = isinstance(value, float) and len(ends) == 2
            interval = MetricValue(value=value, low=low, high=high)
            written.append(with_interval(interval) if known else _value(value))
        elif name[-1:].isdigit():  # `step_4 = 0`, since `step_4 0` would be misread
            written.append(f"{name} = {_value(value)}")
        else:
            written.append(f"{name.replace('_', ' ')} {_value(value)}")
    if not written and low is not None and high is not None:
        written.append(f"{_value(low)} to {_value(high)}")
    values_of = f"{entry['name']}: {', '.join(written)}"
    # Avoid two brackets in a row: `1.02 (1.01 to 1.03), not 1`.
    bare = values_of.endswith(")") or "(" in entry["reads"]
    return f"{values_of}, {entry['reads']}" if bare else f"{values_of} ({entry['reads']})"


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ", ".join(map(_value, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def finding_parts(finding: Finding, result: Result) -> tuple[str, str]:
    """Summarise a finding in two clauses: the numbers, and what to do.

    Numbers beyond their guide are given without limits and sources, which the message has. If the
    remedy is to fix the named cause, the second clause refers to the cause's actions.
    """
    mismatch: Mapping[str, MetricValue] = getattr(result, "mismatch", {})
    names = finding.evidence
    if names and all(name in mismatch for name in names):
        what = ", ".join(f"{name} {measured(mismatch[name])[0]}" for name in names)
    else:
        what = first_clause(finding.message)
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    if causes and finding.fix.startswith((f"{causes[0].slug} explains", f"fix {causes[0].slug}")):
        return what, f"see {'action 1' if causes[0].actions else causes[0].slug}"
    return what, first_clause(finding.fix)


# The end of a clause: a colon, a semicolon or an opening bracket.
CLAUSE = re.compile(r"[:;] | \(")


def first_clause(text: str) -> str:
    """Return the first clause of a text; one word alone, as in `config: ...`, is none yet."""
    ends = (end.start() for end in CLAUSE.finditer(text))
    return next((text[:end] for end in ends if " " in text[:end]), text)


def more(result: Result, *, has_page: bool = False) -> str:
    """Say how to see what the first screen leaves out; with `has_page` a page was written."""
    parts = ["all numbers, limits: -v"]
    verdict = "" if result.diagnosis is None else result.diagnosis.verdict
    if result.kind == "score" and verdict == "correctable":
        parts.append("pick a correction: rcdiag sweep")
    if not has_page:
        parts.append("page: --html")
    return "   ".join(parts)
