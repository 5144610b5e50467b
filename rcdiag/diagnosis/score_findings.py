"""What a score result should say aloud. To add a finding: one function here, one line below."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.results import Finding, MetricValue, ScoreResult, by_severity
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.statistics.metrics import FAMILIES, METRICS


def score_findings(result: ScoreResult, non_finite: NonFinite) -> list[Finding]:
    """All findings on one pair, the gravest first."""
    found = [
        *non_finite_log_probs(non_finite, result.mismatch),
        *_above_guide(result),
        *_temperature_unknown(result.policies),
        *_empty(result.empty_sequences),
        *few_clusters(result.num_clusters),
    ]
    return by_severity(found)


def non_finite_log_probs(non_finite: NonFinite, values: dict[str, MetricValue]) -> list[Finding]:
    """One finding per policy, with the metrics that are touched."""
    touched = [
        name
        for name, value in values.items()
        if value.value is not None and not np.isfinite(value.value)
    ]
    return [
        Finding(
            slug="non-finite-log-probs",
            severity="error",
            message=f"{count} unmasked log-probs of `{policy}` in {non_finite.rows[policy]} rows "
            f"are NaN or infinite; touched metrics: {', '.join(touched) or 'none'}",
            fix="look at these rows; a sampler writes NaN or -inf after an overflow or for a "
            "token outside its kept set. Mask them only if the trainer does",
            evidence={
                "policy": policy,
                "tokens": count,
                "rows": non_finite.rows[policy],
                "first_rows": non_finite.first_rows[policy],
            },
        )
        for policy, count in non_finite.tokens.items()
    ]


def _above_guide(result: ScoreResult) -> list[Finding]:
    """One finding per family of metrics: its worst level, with all that reach it."""
    found = []
    for family in sorted(FAMILIES.values(), key=lambda family: not family.gate):
        levels = {name: result.mismatch[name].level for name in family.metrics}
        severity = next((each for each in ("error", "warning") if each in levels.values()), None)
        if severity is None:
            continue
        names = [name for name, level in levels.items() if level == severity]
        said = "; ".join(_against_guide(name, result, severity) for name in names)
        evidence = {name: result.mismatch[name].value for name in names}
        found.append(
            Finding(
                slug=family.slug,
                severity=severity,
                message=said,
                fix=family.fix,
                evidence=evidence,
            )
        )
    return found


def _against_guide(name: str, result: ScoreResult, severity: str) -> str:
    value, guide = result.mismatch[name].value, METRICS[name].guide
    assert guide is not None
    assert value is not None
    return f"{name} is {value:.3g}, {severity} ({guide.source})"


def _temperature_unknown(policies: dict[str, Any]) -> list[Finding]:
    key = "rows_scored_at_temperature_1_because_unknown"
    rows = {name: each[key] for name, each in policies.items() if each.get(key)}
    if not rows:
        return []
    return [
        Finding(
            slug="temperature-unknown",
            severity="note",
            message=f"{max(rows.values())} rows state no temperature; they were scored at 1",
            fix="add a `temperature` column: at another temperature these are other policies",
            evidence=rows,
        )
    ]


def _empty(count: int) -> list[Finding]:
    if not count:
        return []
    return [
        Finding(
            slug="sequences-without-tokens",
            severity="note",
            message=f"{count} sequences have no unmasked token and are left out",
            fix="padding rows are harmless here; trainers count them in some of their means",
            evidence={"sequences": count},
        )
    ]


def few_clusters(count: int) -> list[Finding]:
    """Intervals come from clusters."""
    if count >= FEW_CLUSTERS:
        return []
    what = f"{count} prompt groups (or sequences without a group) are"
    return [
        Finding(
            slug="few-clusters",
            severity="note",
            message=f"{what if count != 1 else 'one prompt group is'} too few for good intervals",
            fix="score more prompts; tokens of one prompt depend on each other and count little",
            evidence={"clusters": count},
        )
    ]
