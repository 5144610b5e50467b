"""One check for each family of metrics, which reports the metrics beyond their limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rcdiag.diagnosis.checks.check import (
    Check,
    CheckInput,
    Observation,
    advice_of_cause,
    judges_pair,
)
from rcdiag.formats import with_interval
from rcdiag.results.score import NOT_GIVEN
from rcdiag.statistics.metrics import FAMILIES, METRICS, MetricFamily


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
        f"family's metrics.{first}",
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
    said = []
    for name, metric in beyond.items():
        guide = METRICS[name].guide
        assert guide is not None
        said.append(f"{name} is {with_interval(metric)}, {severity} ({guide.source})")
        if metric.expected is not None:
            said[-1] += (
                f", where rounding alone gives {metric.expected:.3g} in {metric.expected_of}"
            )
    yield Observation(
        message="; ".join(said),
        evidence={name: metric.value for name, metric in beyond.items()},
        severity=severity,
        fix=advice_of_cause(given.result),
    )
