"""Entries of findings, causes, health rules and constraints."""

from __future__ import annotations

from typing import Any

from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.diagnosis.checks import all_checks, find_check
from rcdiag.diagnosis.rules import Rule, rules_of
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


def _rules(title: str, plural: str, *concerns: str) -> NameKind:
    def definitions() -> dict[str, Rule[Any]]:
        return {
            name: rule
            for concern in concerns
            for name, rule in rules_of(concern).items()
            # The entry of a correction's number tells its bounds, too.
            if concern != "correction" or rule.see != (rule.own_name,)
        }

    def find(name: str) -> str | None:
        named = (f"{concern}.{name}" for concern in concerns)
        return next((full for full in named if full in definitions()), None)

    headings = {rule.heading: name for name, rule in definitions().items() if rule.heading}
    return NameKind(
        title=title,
        plural=plural,
        definitions=definitions,
        find=find,
        aliases=with_headings(headings),
    )


HEALTH = _rules("rule of health", "Rules of health in `rcdiag replay`", "health", "correction")
CONSTRAINTS_OF_SWEEP = _rules("constraint", "Constraints of `rcdiag sweep`", "constraint")
VERL_CHECK = _rules("check of verl's", "verl's own check of its weights", "verl_check")
LOG_RELATIONS = _rules("relation of logs", "Relations between keys of a training log", "log")
