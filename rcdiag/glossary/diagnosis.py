"""Findings, causes, rules of health and constraints are explained by their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.causes.cause_words import CauseWords, cause_words
from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.diagnosis.constraints import CONSTRAINTS
from rcdiag.diagnosis.guides import Rule
from rcdiag.diagnosis.update_health import UPDATE_RULES
from rcdiag.entry import Entry
from rcdiag.glossary.kinds import NameKind, with_headings

FINDINGS = NameKind(
    title="finding",
    plural="Findings",
    definitions=all_checks,
    definition=find_check,  # without trainers, where no trainer has the check
    line=lambda check: check.asks,
)


def _causes() -> dict[str, CauseWords]:
    """Return the words of the causes that ship, and of those that packages of others add."""
    return {**cause_words(), **{slug: cause.words for slug, cause in CAUSES.items()}}


CAUSES_OF_MISMATCH = NameKind(
    title="cause",
    plural="Causes of a mismatch",
    definitions=_causes,
    line=lambda words: words.title,
)


def _rules(
    title: str, plural: str, prefix: str, rules: Mapping[str, Rule[Any]], jq: str, place: str = ""
) -> NameKind:
    """Make a kind of rules, each listed as `prefix.name`; `place` stands before its bounds."""

    def entry(name: str, rule: Rule[Any]) -> Entry:
        entry = rule.entry()
        is_number = "where it fails" not in (entry.healthy or "")
        healthy = f"{place}{entry.healthy}" if is_number else entry.healthy
        return replace(entry, healthy=healthy, example=jq)

    return NameKind(
        title=title,
        plural=plural,
        definitions=lambda: {f"{prefix}.{name}": rule for name, rule in rules.items()},
        entry=entry,
        find=lambda name: f"{prefix}.{name}" if name in rules else None,
        aliases=with_headings(
            {rule.heading: f"{prefix}.{name}" for name, rule in rules.items() if rule.heading}
        ),
    )


HEALTH = _rules(
    "rule of health",
    "Rules of health in `rcdiag replay`",
    "health",
    UPDATE_RULES,
    "rcdiag replay rollouts.parquet --json | jq '.presets[].health.rules[]'",
)
CONSTRAINTS_OF_SWEEP = _rules(
    "constraint",
    "Constraints of `rcdiag sweep`",
    "constraint",
    CONSTRAINTS,
    "rcdiag sweep rollouts.parquet --json | jq '.recommendation.candidates[].refused'",
    place="refused from the warning on: ",
)
