"""Entries of findings, causes, health rules and constraints."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.diagnosis.rules import rules_of
from rcdiag.glossary.kinds import NameKind, with_headings

FINDINGS = NameKind(
    title="finding",
    plural="Findings",
    definitions=all_checks,
    definition=find_check,  # searches trainers only if the check is specific to one
    line=lambda check: check.asks,
)


CAUSES_OF_MISMATCH = NameKind(
    title="cause",
    plural="Causes of a mismatch",
    # Those that ship, and those that plugins add.
    definitions=lambda: {**cause_words(), **{slug: one.words for slug, one in CAUSES.items()}},
    line=lambda words: words.title,
)


def _rules(title: str, plural: str, concern: str) -> NameKind:
    def find(name: str) -> str | None:
        return f"{concern}.{name}" if f"{concern}.{name}" in rules_of(concern) else None

    headings = {rule.heading: name for name, rule in rules_of(concern).items() if rule.heading}
    return NameKind(
        title=title,
        plural=plural,
        definitions=lambda: rules_of(concern),
        find=find,
        aliases=with_headings(headings),
    )


HEALTH = _rules("rule of health", "Rules of health in `rcdiag replay`", "health")
CONSTRAINTS_OF_SWEEP = _rules("constraint", "Constraints of `rcdiag sweep`", "constraint")
VERL_CHECK = _rules("check of verl's", "verl's own check of its weights", "verl_check")
LOG_RELATIONS = _rules("relation of logs", "Relations between keys of a training log", "log")
