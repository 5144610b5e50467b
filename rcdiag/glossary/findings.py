"""Findings are explained by the checks that raise them."""

from __future__ import annotations

from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.glossary.entry import Entry, Kind


def entry(slug: str) -> Entry:
    check = find_check(slug)
    source = f" Source: {check.source}." if check.source else ""
    where = ", ".join(
        "settings of a trainer" if stage == "config" else f"`rcdiag {stage}`"
        for stage in check.stages
    )
    return Entry(
        name=slug,
        kind=KIND.title,
        what=f"{check.asks} {check.says} Severity: {check.severity}. What to do: {check.fix}. "
        f"Asked of: {where}.{source}",
        example=check.example or None,
        see=check.see,
    )


KIND: Kind = Kind(
    title="finding",
    plural="Findings",
    names=all_checks,
    line=lambda slug: find_check(slug).asks,
    entry=entry,
)
