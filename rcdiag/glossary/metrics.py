"""Mismatch metrics, from their own registry. What that leaves unsaid: `metric_words.py`."""

from __future__ import annotations

import re

from rcdiag.glossary import logged, worked
from rcdiag.glossary.entry import LOG_RATIO, Entry, Kind
from rcdiag.glossary.guides import range_of
from rcdiag.glossary.metric_words import DIRECTIONS, ELSEWHERE, FORMULAS, LOGGED_AS, SYMMETRIC
from rcdiag.statistics.metrics import FAMILIES, METRICS

# What tells the formula from the rest of a metric's `about`.
_FORMULA = re.compile(r"E\[|E\||\(sum|Var\(|exp\(| / ")


def formula_and_rest(about: str) -> tuple[str | None, str]:
    """The part of an `about` that is its formula, and the rest of it."""
    pieces = re.split(r"((?:,|;|:) (?!\d+\]))", about)
    for index in range(0, len(pieces), 2):
        if _FORMULA.search(pieces[index]):
            rest = [*pieces[: index - 1], *pieces[index + 1 :]] if index else pieces[2:]
            return pieces[index], "".join(rest)
    return None, about


def _formula_and_what(name: str) -> tuple[str | None, str]:
    about, label = METRICS[name].about, METRICS[name].label
    if name in FORMULAS:
        return FORMULAS[name], f"{label}: {about}"
    formula, rest = formula_and_rest(about)
    return formula, f"{label}: {rest}" if rest else label


def entry(name: str) -> Entry:
    metric = METRICS[name]
    family = next(family for family in FAMILIES.values() if name in family.metrics)
    formula, what = _formula_and_what(name)
    return Entry(
        name=name,
        kind=KIND.title,
        what=what,
        formula=formula,
        direction=_direction(name),
        units=metric.unit or "none",
        healthy=range_of(metric.ideal, metric.guide),
        generations=_elsewhere(name),
        example=_example(name),
        see=(family.slug, *([f"rollout_corr/{LOGGED_AS[name]}"] if name in LOGGED_AS else [])),
    )


def _direction(name: str) -> str:
    if name in SYMMETRIC:
        return "the same with the log-probs of both policies exchanged"
    return DIRECTIONS.get(name, LOG_RATIO)


def _elsewhere(name: str) -> dict[str, str]:
    logs = logged.generations(LOGGED_AS[name]) if name in LOGGED_AS else {}
    return {**logs, **ELSEWHERE.get(name, {})}


def _example(name: str) -> str:
    value = worked.metric(name)
    if value is None:
        return f"rcdiag score rollouts.parquet --json | jq .mismatch.{_quoted(name)}"
    return f"{worked.TOY}: {value:.4g}"


def _quoted(name: str) -> str:
    return f"'\"{name}\"'" if "." in name else name


KIND: Kind = Kind(
    title="metric",
    plural="Metrics of a pair of policies",
    lines=lambda: {name: metric.label for name, metric in METRICS.items()},
    entry=entry,
)
