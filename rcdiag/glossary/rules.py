"""Findings, rules of health and constraints are explained by the words on their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.diagnosis.rules import Rule, rules_of
from rcdiag.entry import Entry
from rcdiag.glossary.kinds import Kind, registered, with_headings


def _finding(slug: str) -> Entry:
    check = find_check(slug)
    source = f" Source: {check.source}." if check.source else ""
    where = ", ".join(
        "settings of a trainer" if stage == "config" else f"`rcdiag {stage}`"
        for stage in check.stages
    )
    return Entry(
        what=f"{check.asks} {check.says} Severity: {check.severity}. What to do: {check.fix}. "
        f"Asked of: {where}.{source}",
        example=check.example or None,
        see=check.see,
    )


FINDINGS: Kind = Kind(
    title="finding",
    plural="Findings",
    names=all_checks,
    line=lambda slug: find_check(slug).asks,
    entry=_finding,
)


def _rules(title: str, plural: str, concern: str) -> Kind:
    def rules() -> Mapping[str, Rule[Any]]:
        return rules_of(concern)

    def find(name: str) -> str | None:
        dotted = f"{concern}.{name}"
        return dotted if dotted in rules() else None

    headings = {rule.heading: name for name, rule in rules().items() if rule.heading}
    return registered(title, plural, rules, find=find, aliases=with_headings(headings))


HEALTH = _rules("rule of health", "Rules of health in `rcdiag replay`", "health")
CONSTRAINTS_OF_SWEEP = _rules("constraint", "Constraints of `rcdiag sweep`", "constraint")
