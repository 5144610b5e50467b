"""Findings, rules of health and constraints are explained by the words on their definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.diagnosis.constraints import CONSTRAINTS
from rcdiag.diagnosis.guides import Rule
from rcdiag.diagnosis.update_health import UPDATE_RULES
from rcdiag.entry import Entry, first_clause
from rcdiag.glossary.kinds import Kind, with_headings
from rcdiag.glossary.metrics import bounds_of


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


_RULE = "rcdiag replay rollouts.parquet --json | jq '.presets[].health.rules[]'"
_REFUSED = "rcdiag sweep rollouts.parquet --json | jq '.recommendation.candidates[].refused'"


def _healthy(rule: Rule[Any], *, refuses: bool) -> str:
    """Write the bounds of a rule; with `refuses` a constraint is broken from its first bound on."""
    guide = rule.guide
    if guide.warning == 1.0 and guide.error in (1.0, math.inf):  # a yes or a no
        worst = "an error" if guide.error == 1.0 else "a warning"
        return f"{worst} where it fails ({guide.source})"
    bounds = bounds_of(guide)
    return f"refused from the warning on: {bounds}" if refuses else bounds


def _kind(title: str, plural: str, prefix: str, rules: Mapping[str, Rule[Any]], jq: str) -> Kind:
    def entry(name: str) -> Entry:
        rule = rules[name.removeprefix(prefix)]
        return Entry(
            what=rule.says,
            formula=rule.formula,
            direction=rule.direction,
            units=rule.unit or "none",
            healthy=_healthy(rule, refuses=rules is CONSTRAINTS),
            example=jq,
            see=rule.see,
        )

    return Kind(
        title=title,
        plural=plural,
        names=lambda: [f"{prefix}{name}" for name in rules],
        line=lambda name: first_clause(rules[name.removeprefix(prefix)].says),
        entry=entry,
        find=lambda name: f"{prefix}{name}" if name in rules else None,
        aliases=with_headings(
            {rule.heading: f"{prefix}{name}" for name, rule in rules.items() if rule.heading}
        ),
    )


HEALTH = _kind(
    "rule of health", "Rules of health in `rcdiag replay`", "health.", UPDATE_RULES, _RULE
)
CONSTRAINTS_OF_SWEEP = _kind(
    "constraint", "Constraints of `rcdiag sweep`", "constraint.", CONSTRAINTS, _REFUSED
)
