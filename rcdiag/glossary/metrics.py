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
    # AReaL logs statistics of these, and no key with this name.
    aliases={"behave_approx_kl": "k1_kl", "kl_div_taylor": "k2_kl"},
)
PROFILES_OF_PAIRS = NameKind(
    title="profile",
    plural="Profiles: mismatch along an axis",
    definitions=lambda: PROFILES,
    line=lambda axis: f"mismatch by {axis.title}",
    entry=lambda name, axis: axis.entry(name),
)
