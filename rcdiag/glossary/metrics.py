"""Metrics of a pair of policies and profiles are explained by their definitions."""

from __future__ import annotations

from rcdiag.entry import LOG_RATIO, Entry
from rcdiag.glossary.kinds import Kind
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.profiles import LABELS, PROFILES


def range_of(ideal: float | None, guide: Guide | None) -> str | None:
    """Write ideal and guide: `ideal 0; warning at or above 0.001 (source)`; None without both."""
    parts = [] if ideal is None else [f"ideal {ideal:g}"]
    if guide is not None:
        parts.append(guide.bounds)
    return "; ".join(parts) or None


def _metric(name: str) -> Entry:
    metric = METRICS[name]
    source = f" Source: {metric.source}." if metric.source else ""
    presupposes = f"; presupposes that {metric.presupposes}" if metric.presupposes else ""
    return Entry(
        what=f"{metric.label}: {metric.says}{source}",
        formula=metric.formula,
        direction=metric.direction + presupposes,
        units=metric.unit or "none",
        healthy=range_of(metric.ideal, metric.guide),
        generations=metric.elsewhere,
        example=metric.example or f"rcdiag score rollouts.parquet --json | jq {_path(name)}",
        see=(metric.family.slug, *metric.see),
    )


def _path(name: str) -> str:
    """Return the path of a metric in the result of `rcdiag score`, as jq takes it."""
    return f".mismatch.{name}" if name.isidentifier() else f"'.mismatch.\"{name}\"'"


METRICS_OF_PAIRS: Kind = Kind(
    title="metric",
    plural="Metrics of a pair of policies",
    names=lambda: METRICS,
    line=lambda name: METRICS[name].label,
    entry=_metric,
)


def _bins(name: str) -> str:
    labels = LABELS.get(name) or PROFILES[name].labels()
    if len(labels) <= 4:
        return ", ".join(labels)
    return f"{labels[0]}, {labels[1]}, ..., {labels[-1]}"


def _profile(name: str) -> Entry:
    axis = PROFILES[name]
    needs = f" Needs {axis.needs}." if axis.needs else ""
    return Entry(
        what=f"Mismatch by {axis.title}. {axis.about}{needs}",
        formula="per bin: mean and rms of log_ratio, k3, share of sum log_ratio^2; bins "
        + _bins(name),
        direction=LOG_RATIO,
        units=f"{axis.unit or 'none'}; nats for the mismatch of a bin",
        example="rcdiag score rollouts.parquet --html mismatch.html",
    )


PROFILES_OF_PAIRS: Kind = Kind(
    title="profile",
    plural="Profiles: mismatch along an axis",
    names=lambda: PROFILES,
    line=lambda name: f"mismatch by {PROFILES[name].title}",
    entry=_profile,
)
