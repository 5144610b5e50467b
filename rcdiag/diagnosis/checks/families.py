"""A check of each family of metrics asks whether one is beyond its guide."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rcdiag.diagnosis.checks.check import Check, CheckInput, Observation, advice_of_cause
from rcdiag.results import MetricValue
from rcdiag.results.base import written_interval
from rcdiag.statistics.metrics import FAMILIES, METRICS, Family

# Long responses and heavy-tailed tokens make sequence ESS small and k-hat large in an honest run.
OF_LENGTH_AND_TAILS = ("little-overlap", "heavy-tail", "behavior-is-not-the-sampler")
HONEST = "; the rounding of two engines alone makes it so at this length and law of tokens"


def family_checks() -> list[Check]:
    """Make a check for every family, those first that must be settled before anything else."""
    return [
        _check(family) for family in sorted(FAMILIES.values(), key=lambda family: not family.gate)
    ]


def _check(family: Family) -> Check:
    judged = tuple(name for name, metric in family.metrics.items() if metric.guide)
    first = " Settle it before anything else." if family.gate else ""
    return Check(
        slug=family.slug,
        severity="error",
        stages=("score",),
        asks=family.question,
        says=f"A metric that answers this is beyond its guide; the severity is the worst level of "
        f"the family's metrics, error or warning.{first}",
        fix=family.fix,
        example=f"rcdiag explain {judged[0]}" if judged else "",
        see=judged,
        find=partial(_beyond_guide, family),
    )


def _beyond_guide(family: Family, given: CheckInput) -> Iterator[Observation]:
    """Report the worst level of a family and the metrics that reach it; `unknown` is no alarm."""
    values = {name: given.values[name] for name in family.metrics if name in given.values}
    levels = {metric.level for metric in values.values()}
    severity = next((level for level in ("error", "warning") if level in levels), None)
    if severity is None:
        return
    beyond = {name: metric for name, metric in values.items() if metric.level == severity}
    message = "; ".join(_against_guide(name, metric) for name, metric in beyond.items())
    honest = family.slug in OF_LENGTH_AND_TAILS and _rounding_alone(given.result)
    yield Observation(
        message=f"{message}{HONEST if honest else ''}",
        evidence={name: metric.value for name, metric in beyond.items()},
        severity="note" if honest else severity,
        fix=advice_of_cause(given.result),
    )


def _rounding_alone(result: Any) -> bool:
    """Tell whether the diagnosis names nothing but the rounding of two honest engines."""
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    return bool(causes) and all(cause.slug in ("engine-noise", "healthy") for cause in causes)


def _against_guide(name: str, value: MetricValue) -> str:
    """Write a metric against its guide: `kappa is -0.161 (-0.92 to 0.65), warning (source)`."""
    guide = METRICS[name].guide
    assert guide is not None
    ends = written_interval(value, lambda end: f"{end:.3g}")
    interval = f" ({ends})" if ends else ""
    honest = "" if value.expected is None else f", {value.expected:.3g} expected of rounding"
    return f"{name} is {value.value:.3g}{interval}{honest}, {value.level} ({guide.source})"
