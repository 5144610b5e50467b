"""What a score result should say aloud. To add a finding: one function here, one line below."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.results import Finding, MetricValue
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.metrics import METRICS


def score_findings(
    non_finite: NonFinite,
    policies: dict[str, Any],
    values: dict[str, MetricValue],
    empty_sequences: int,
) -> list[Finding]:
    """All findings on one pair, the gravest first."""
    found = [
        *_non_finite(non_finite, values),
        *_above_guide(values),
        *_temperature_unknown(policies),
        *_empty(empty_sequences),
    ]
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _non_finite(non_finite: NonFinite, values: dict[str, MetricValue]) -> list[Finding]:
    touched = [name for name, value in values.items() if not np.isfinite(value.value)]
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


def _above_guide(values: dict[str, MetricValue]) -> list[Finding]:
    found = []
    for severity in ("error", "warning"):
        names = [name for name, value in values.items() if value.level == severity]
        if names:
            said = "; ".join(_against_guide(name, values[name].value, severity) for name in names)
            found.append(
                Finding(
                    slug="mismatch-above-guide",
                    severity=severity,
                    message=said,
                    fix="see which tokens and steps carry it; score other precisions of the same "
                    "model to tell engine from precision",
                    evidence={name: values[name].value for name in names},
                )
            )
    return found


def _against_guide(name: str, value: float, severity: str) -> str:
    guide = METRICS[name].guide
    assert guide is not None
    bound = guide.error if severity == "error" else guide.warning
    return f"{name} is {value:.3g}, {severity} from {bound:g} on ({guide.source})"


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
