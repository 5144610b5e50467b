"""Comparison of two results up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.results import CorrectionResult

ROUNDING = 1e-12


def _std_scale(metrics: dict[str, float], name: str) -> float:
    """Return the scale of rounding errors: sqrt(E[x^2] - E[x]^2) cancels at the size of x^2."""
    return abs(metrics.get(name.removesuffix("std") + "max", 1.0)) ** 2


def _same(expected: Any, result: Any, scale: float = 1.0) -> bool:
    if expected is None or result is None or isinstance(expected, dict):
        return expected == result
    if expected == result or (np.isnan(expected) and np.isnan(result)):
        return True
    return bool(abs(expected - result) <= ROUNDING * max(scale, abs(expected), abs(result), 1.0))


def changed_metrics(expected: dict[str, float], result: dict[str, float]) -> list[str]:
    """Return the names of metrics that differ, or that only one result has."""
    names = sorted(set(expected) ^ set(result))
    for name in set(expected) & set(result):
        one, other, scale = expected[name], result[name], 1.0
        if name.endswith("_std"):
            one, other, scale = one**2, other**2, _std_scale(expected, name)
        names += [] if _same(one, other, scale) else [name]
    return names


def changed_outcome(expected: CorrectionResult, result: CorrectionResult) -> list[str]:
    """Return the names of kept counts, weights and rcdiag's own metrics that differ."""
    names = [
        name
        for name in ("kept_tokens", "kept_sequences", "weight_sum")
        if not _same(getattr(expected, name), getattr(result, name))
    ]
    keys = set(expected.actual) | set(result.actual)
    return names + [
        name for name in sorted(keys) if not _same(expected.actual[name], result.actual[name])
    ]


def changed(expected: CorrectionResult, result: CorrectionResult) -> list[str]:
    return changed_metrics(expected.metrics, result.metrics) + changed_outcome(expected, result)


def changed_in_any(
    expected: dict[str, CorrectionResult], result: dict[str, CorrectionResult]
) -> dict[str, list[str]]:
    """Return the presets whose results differ, with the names of the differences."""
    assert set(expected) == set(result)
    of_presets = {name: changed(expected[name], result[name]) for name in expected}
    return {name: names for name, names in of_presets.items() if names}
