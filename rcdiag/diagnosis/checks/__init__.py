"""Checks ask questions about results, and say what a finding means.

To add a check: `@check` on the function that finds it, and its name in the tuple of its file.
"""

from __future__ import annotations

from rcdiag.diagnosis.checks.check import (
    CHECKS,
    STAGES,
    Check,
    CheckInput,
    Observation,
    findings_of,
)
from rcdiag.diagnosis.checks.corrections import CORRECTION_CHECKS, SWEEP_CHECKS
from rcdiag.diagnosis.checks.families import family_checks
from rcdiag.diagnosis.checks.logged import LOGGED_CHECKS
from rcdiag.diagnosis.checks.measurable import TABLE_CHECKS, few_clusters
from rcdiag.diagnosis.checks.policies import POLICY_CHECKS
from rcdiag.diagnosis.checks.routing import ROUTING_CHECKS
from rcdiag.diagnosis.checks.trainer_config import TRAINER_CONFIG_CHECKS, trainer_checks
from rcdiag.diagnosis.checks.updates import UPDATE_CHECKS
from rcdiag.results import Finding

__all__ = [
    "CHECKS",
    "STAGES",
    "Check",
    "CheckInput",
    "Observation",
    "all_checks",
    "find_check",
    "findings",
]

CHECKS.ship(
    (
        *TABLE_CHECKS,
        *POLICY_CHECKS,
        *SWEEP_CHECKS,
        *UPDATE_CHECKS,
        few_clusters,
        *CORRECTION_CHECKS,
        *LOGGED_CHECKS,
        *ROUTING_CHECKS,
        *TRAINER_CONFIG_CHECKS,
    )
)


def all_checks() -> dict[str, Check]:
    """Return every check by its slug: those of results, then those of trainers' settings."""
    return {check.slug: check for check in (*_of_results(), *trainer_checks())}


def find_check(slug: str) -> Check:
    """Find a check by its slug; trainers are imported only if no check of results has it."""
    return next((each for each in _of_results() if each.slug == slug), None) or all_checks()[slug]


def _of_results() -> tuple[Check, ...]:
    """Return one check for each family of metrics, and the registered ones."""
    return (*family_checks(), *CHECKS.values())


def findings(given: CheckInput) -> list[Finding]:
    """Return the findings of all checks of a result's stage, by severity.

    Trainers' checks of settings are not among them: they run where the settings are read.
    """
    return findings_of(_of_results(), given)
