"""Findings that are made while a trainer's settings are read; their texts are in TOML files.

The texts of findings that any trainer's settings may cause are in `findings.toml` beside this file,
those of one trainer's findings in the `findings.toml` next to its code.
"""

from __future__ import annotations

from rcdiag.diagnosis.checks.check import Check
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import read_findings


def checks_of(package: str) -> dict[str, Check]:
    """Return the findings whose texts are in a package's `findings.toml`, by slug."""
    return {
        slug: Check(
            slug=slug,
            severity=words.severity,
            stages=("config",),
            asks=words.asks,
            says=words.says,
            fix=words.fix,
            example=words.example,
            see=words.see,
            source=words.source,
            find=None,
        )
        for slug, words in read_findings(package).items()
    }


TRAINER_CONFIG_CHECKS = tuple(checks_of("rcdiag.diagnosis.checks").values())


def trainer_checks() -> tuple[Check, ...]:
    """Return the findings that trainers make of their own settings, one per slug."""
    checks: dict[str, Check] = {}
    for package in dict.fromkeys(trainer.package for trainer in TRAINERS.values()):
        checks |= checks_of(package)
    return tuple(checks.values())
