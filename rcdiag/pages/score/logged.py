"""The comparison of a trainer's own log with our numbers, as text for terminal and page."""

from __future__ import annotations

import math

from msgspec import Struct

from rcdiag.formats import plural, shortest_names
from rcdiag.results import LogComparison, LoggedKey

AGREES, UNEXPLAINED = "agrees", "not explained"


class LoggedLine(Struct, frozen=True):
    """A key of the log, formatted, at the step of its largest difference."""

    name: str  # the last parts of the key, as many as tell it from the others
    key: str
    step: str
    theirs: str
    ours: str
    reads: str
    agrees: bool
    reason: str


def lines_of(comparison: LogComparison) -> list[LoggedLine]:
    """Return a line for each key of the log, those that differ first."""
    by_key: dict[str, list[LoggedKey]] = {}
    for one in comparison.keys:
        by_key.setdefault(one.key, []).append(one)
    names = shortest_names(list(by_key))
    lines = [_line(name, key, of) for name, (key, of) in zip(names, by_key.items(), strict=True)]
    return sorted(lines, key=lambda line: (line.agrees, line.reads != UNEXPLAINED))


def _line(name: str, key: str, numbers: list[LoggedKey]) -> LoggedLine:
    worst = max(numbers, key=_urgency)
    differ = sum(not one.agrees for one in numbers)
    reads = AGREES if worst.agrees else worst.explained_by or UNEXPLAINED
    theirs, ours = _distinct_digits(worst.theirs, worst.ours)
    return LoggedLine(
        name=name,
        key=key,
        step="" if worst.log_step is None else str(worst.log_step),
        theirs=theirs,
        ours=ours,
        reads=f"{reads} ({differ} of {len(numbers)} steps)" if 0 < differ < len(numbers) else reads,
        agrees=worst.agrees,
        reason=worst.reason or "",
    )


def _urgency(one: LoggedKey) -> tuple[bool, bool, float]:
    """Rank differences: those without a reason first, then by relative size."""
    size = max(abs(one.theirs), abs(one.ours))
    apart = abs(one.difference) / size if size and math.isfinite(size) else float(not one.agrees)
    return not one.agrees, not one.agrees and one.explained_by is None, apart


def _distinct_digits(theirs: float, ours: float) -> tuple[str, str]:
    """Format both numbers with as many digits as it takes to tell them apart, four to nine."""
    for digits in range(4, 10):
        written = f"{theirs:.{digits}g}", f"{ours:.{digits}g}"
        if written[0] != written[1]:
            return written
    return f"{theirs:.4g}", f"{ours:.4g}"


def sentences(comparison: LogComparison, notes: int | None = None) -> dict[str, str]:
    """Return a sentence for each reason, by its name; the first if there are several.

    Keys whose difference nothing explains are listed by key, at most `notes` of them.
    """
    by_name: dict[str, str] = {}
    unexplained: dict[str, str] = {}
    names = {line.key: line.name for line in lines_of(comparison)}
    for one in comparison.keys:
        if one.agrees or not one.reason:
            continue
        if one.explained_by:
            by_name.setdefault(one.explained_by, one.reason)
        else:
            unexplained.setdefault(names[one.key], one.reason)
    return {**dict(list(unexplained.items())[:notes]), **by_name}


def verdict_of_log(comparison: LogComparison, verdict: str, *, alone: bool) -> str:
    """Say what the log shows by itself beside the table's `verdict`; "" if it shows no fault.

    If the table has one policy (`alone`), the log is all that is judged, and is always reported.
    """
    shows = comparison.log_shows
    if shows is None or not (alone or comparison.log_is_faulty):
        return ""
    steps = [step for step in comparison.log_steps if step is not None]
    start, outside, before = shows.log_from, "", False
    if start is not None and steps and not min(steps) <= start <= max(steps):
        ends = f" {min(steps)} to {max(steps)}" if len(steps) > 1 else f" {steps[0]}"
        before = max(steps) < start
        side = "before" if before else "after"
        outside = f"; this table holds step{'s' * (len(steps) > 1)}{ends}, {side} it"
    says = f"{shows.log_verdict}{'' if start is None else f' from step {start} on'}"
    if shows.log_verdict == verdict and not before and not alone:
        return f"The log alone gives the same verdict: {says}."
    return f"Verdict of the log alone: {says}{outside}. {shows.summary}"


def counted_keys(comparison: LogComparison) -> str:
    """Say how many keys agree, and with what; or that none was compared."""
    if not comparison.keys:
        return "not compared key by key, since the table has one policy"
    lines = lines_of(comparison)
    beside = f"preset {comparison.preset}" if comparison.preset else "the mismatch"
    agree = sum(line.agrees for line in lines)
    return f"{agree} of {plural(len(lines), 'key')} agree with {beside}"
