"""Metrics of a pair of policies are explained by the words on their definitions."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind
from rcdiag.glossary.guides import range_of
from rcdiag.statistics.metrics import METRICS, Metric


def entry(name: str) -> Entry:
    metric = METRICS[name]
    source = f" Source: {metric.source}." if metric.source else ""
    return Entry(
        name=name,
        kind=KIND.title,
        what=f"{metric.label}: {metric.says}{source}",
        formula=metric.formula,
        direction=_direction(metric),
        units=metric.unit or "none",
        healthy=range_of(metric.ideal, metric.guide),
        generations=metric.elsewhere,
        example=metric.example or f"rcdiag score rollouts.parquet --json | jq {_path(name)}",
        see=(metric.family.slug, *metric.see),
    )


def _direction(metric: Metric) -> str:
    if metric.presupposes is None:
        return metric.direction
    return f"{metric.direction}; presupposes that {metric.presupposes}"


def _path(name: str) -> str:
    """Return the path of a metric in the result of `rcdiag score`, as jq takes it."""
    return f".mismatch.{name}" if name.isidentifier() else f"'.mismatch.\"{name}\"'"


KIND: Kind = Kind(
    title="metric",
    plural="Metrics of a pair of policies",
    names=lambda: METRICS,
    line=lambda name: METRICS[name].label,
    entry=entry,
)
