"""A check of each family of metrics asks whether one is beyond its guide."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rcdiag.diagnosis.checks.check import Check, CheckInput, Observation, advice_of_cause
from rcdiag.results import SEVERITIES, MetricValue
from rcdiag.results.base import written_interval
from rcdiag.statistics.metrics import FAMILIES, METRICS, Family

# Long responses and heavy-tailed tokens make sequence ESS small and k-hat large in an honest run.
OF_LENGTH_AND_TAILS = ("little-overlap", "heavy-tail", "behavior-is-not-the-sampler")
HONEST = "; the rounding of two engines alone makes it so at this length and law of tokens"
# The gravest that a number may be beside a verdict: what weights mend is no error, and what must
# not be mended is no alarm. Where the cause cannot be told, the number stands for itself.
GRAVEST = {"healthy": "note", "correctable": "warning"}
BESIDE = {
    "healthy": "; the verdict is healthy, so it is a note",
    "correctable": ", downgraded to a warning: importance weights are valid here",
}


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
        says=f"A metric that answers this is beyond its guide. The severity is the worst level of "
        "the family's metrics, error or warning, but no graver than the verdict: a warning where "
        f"that is correct, a note where it is fine.{first}",
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
    counts, why = ("note", HONEST) if honest else _beside_verdict(given.result, severity)
    yield Observation(
        message=f"{message}{why}",
        evidence={name: metric.value for name, metric in beyond.items()},
        severity=counts,
        fix=advice_of_cause(given.result),
    )


def _beside_verdict(result: Any, severity: str) -> tuple[str, str]:
    """Return how a number beyond its guide counts beside the verdict, and why where that is less.

    Numbers and verdict come from one judge, so that `--fail-on` answers the same to both. A verdict
    on another pair of policies says nothing of these numbers.
    """
    pair = {"sampler": result.behavior, "trainer": result.target}
    judged = result.diagnosis is not None and result.diagnosis.pair == pair
    verdict = result.diagnosis.verdict if judged else ""
    gravest = GRAVEST.get(verdict, "error")
    if SEVERITIES.index(severity) <= SEVERITIES.index(gravest):
        return severity, ""
    return gravest, BESIDE[verdict]


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
    honest = ""
    if value.expected is not None:
        honest = f", {value.expected:.3g} expected of rounding, {value.expected_of}"
    return f"{name} is {value.value:.3g}{interval}{honest}, {value.level} ({guide.source})"
