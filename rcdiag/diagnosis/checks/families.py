"""One check for each family of metrics, which reports the metrics beyond their limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rcdiag.diagnosis.checks.check import (
    Check,
    CheckInput,
    Observation,
    advice_of_cause,
    judges_pair,
)
from rcdiag.formats import with_interval
from rcdiag.results import SEVERITIES, MetricValue
from rcdiag.results.diagnosis import GRAVEST, NOTHING_WRONG, WHY_MILDER
from rcdiag.results.score import NOT_GIVEN
from rcdiag.statistics.metrics import FAMILIES, METRICS, MetricFamily

# Long responses and heavy-tailed tokens make sequence ESS small and k-hat large in an honest run.
OF_LENGTH_AND_TAILS = ("little-overlap", "heavy-tail", "behavior-is-not-the-sampler")
HONEST = "; rounding noise of two engines alone does this at these response lengths"


def family_checks() -> list[Check]:
    """Make a check for every family, first those whose findings must be resolved first."""
    return [
        _check(family) for family in sorted(FAMILIES.values(), key=lambda family: not family.gate)
    ]


def _check(family: MetricFamily) -> Check:
    judged = tuple(name for name, metric in family.metrics.items() if metric.guide)
    first = " Resolve it before anything else." if family.gate else ""
    return Check(
        slug=family.slug,
        severity="error",
        stages=("score",),
        asks=family.question,
        says="A metric of this family is beyond its limit. The severity is the worst level of the "
        "family's metrics, but at most a warning where the verdict is correctable, and a note "
        f"where it is healthy.{first}",
        fix=family.fix,
        example=f"rcdiag explain {judged[0]}" if judged else "",
        see=judged,
        find=partial(_beyond_guide, family),
    )


def _beyond_guide(family: MetricFamily, given: CheckInput) -> Iterator[Observation]:
    """Report the worst level of a family and the metrics that have it; `unknown` is no finding."""
    if family.gate and given.result.token_means == NOT_GIVEN and not judges_pair(given.result):
        return  # another policy sampled: whether this one did is no question
    values = {name: given.values[name] for name in family.metrics if name in given.values}
    levels = {metric.level for metric in values.values()}
    severity = next((level for level in ("error", "warning") if level in levels), None)
    if severity is None:
        return
    beyond = {name: metric for name, metric in values.items() if metric.level == severity}
    message = "; ".join(_against_guide(name, metric) for name, metric in beyond.items())
    causes = given.result.diagnosis.causes if judges_pair(given.result) else []
    rounding_alone = bool(causes) and all(cause.slug in NOTHING_WRONG for cause in causes)
    honest = family.slug in OF_LENGTH_AND_TAILS and rounding_alone
    counts, why = ("note", HONEST) if honest else _beside_verdict(given.result, severity)
    yield Observation(
        message=f"{message}{why}",
        evidence={name: metric.value for name, metric in beyond.items()},
        severity=counts,
        fix=advice_of_cause(given.result),
    )


def _beside_verdict(result: Any, severity: str) -> tuple[str, str]:
    """Return the severity that a finding has under the verdict, and the reason if it is lowered.

    It is lowered so that `--fail-on` agrees with the verdict. A verdict on another pair of policies
    does not count.
    """
    verdict = result.diagnosis.verdict if judges_pair(result) else ""
    gravest = GRAVEST.get(verdict, "error")
    if SEVERITIES.index(severity) <= SEVERITIES.index(gravest):
        return severity, ""
    return gravest, f", downgraded to a {gravest}: {WHY_MILDER[verdict]}"


def _against_guide(name: str, value: MetricValue) -> str:
    """Write a metric with its limit: `kappa is -0.161 (-0.92 to 0.65), warning (source)`."""
    guide = METRICS[name].guide
    assert guide is not None
    honest = ""
    if value.expected is not None:
        honest = f", {value.expected:.3g} expected of rounding, {value.expected_of}"
    return f"{name} is {with_interval(value)}{honest}, {value.level} ({guide.source})"
