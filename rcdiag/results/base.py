"""What all results are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# 1: the first.
FORMAT_VERSION = 1
# Metadata of a field that was added since: documents may lack it, and then it has its default.
ADDED = {"added": True}

SEVERITIES = ("note", "warning", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricValue:
    """A number with its 95% interval and level; None where there is none.

    A value of None is not defined on this data; NaN says that a NaN log-prob touches it.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that the reader should know, and what to do about it."""

    slug: str
    severity: str  # of SEVERITIES
    message: str
    fix: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileBin:
    """The tokens of one bin, and how far apart both policies are on them."""

    label: str
    tokens: int
    log_ratio_mean: MetricValue
    log_ratio_rms: MetricValue
    k3_kl: MetricValue
    share_of_squares: float  # of the sum of log_ratio^2 over all bins


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Mismatch along one axis; only bins with tokens are listed."""

    title: str
    unit: str
    about: str
    bins: list[ProfileBin]


def by_severity(findings: list[Finding]) -> list[Finding]:
    """The gravest first; of equal ones the first stays first."""
    order = tuple(reversed(SEVERITIES))
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def worst_severity(findings: list[Finding]) -> str | None:
    """The highest severity there is, None without findings."""
    ranks = [SEVERITIES.index(finding.severity) for finding in findings]
    return SEVERITIES[max(ranks)] if ranks else None
