"""Entries of the metrics of a pair of policies, and of profiles."""

from __future__ import annotations

from rcdiag.glossary.kinds import NameKind
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.profiles import PROFILES

METRICS_OF_PAIRS = NameKind(
    title="metric",
    plural="Metrics of a pair of policies",
    definitions=lambda: METRICS,
    line=lambda metric: metric.label,
)
PROFILES_OF_PAIRS = NameKind(
    title="profile",
    plural="Profiles: mismatch along an axis",
    definitions=lambda: PROFILES,
    line=lambda axis: f"mismatch by {axis.title}",
    entry=lambda name, axis: axis.entry(name),
)
