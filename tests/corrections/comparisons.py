"""Are two results the same, but for rounding?"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.results import CorrectionResult

ROUNDING = 1e-12


def _std_scale(metrics: dict[str, float], name: str) -> float:
    """A standard deviation is sqrt(E[x^2] - E[x]^2): its square has rounding errors of x^2."""
    return abs(metrics.get(name.removesuffix("std") + "max", 1.0)) ** 2


def _same(wanted: Any, found: Any, scale: float = 1.0) -> bool:
    if wanted is None or found is None or isinstance(wanted, dict):
        return wanted == found
    if wanted == found or (np.isnan(wanted) and np.isnan(found)):
        return True
    return bool(abs(wanted - found) <= ROUNDING * max(scale, abs(wanted), abs(found), 1.0))


def changed_metrics(wanted: dict[str, float], found: dict[str, float]) -> list[str]:
    """Names of metrics that differ, or that only one has."""
    names = sorted(set(wanted) ^ set(found))
    for name in set(wanted) & set(found):
        one, other, scale = wanted[name], found[name], 1.0
        if name.endswith("_std"):
            one, other, scale = one**2, other**2, _std_scale(wanted, name)
        names += [] if _same(one, other, scale) else [name]
    return names


def changed_outcome(wanted: CorrectionResult, found: CorrectionResult) -> list[str]:
    """What differs of kept tokens, weights and honest numbers."""
    names = [
        name
        for name in ("kept_tokens", "kept_sequences", "weight_sum")
        if not _same(getattr(wanted, name), getattr(found, name))
    ]
    keys = set(wanted.actual) | set(found.actual)
    return names + [
        name for name in sorted(keys) if not _same(wanted.actual[name], found.actual[name])
    ]


def changed(wanted: CorrectionResult, found: CorrectionResult) -> list[str]:
    return changed_metrics(wanted.metrics, found.metrics) + changed_outcome(wanted, found)


def changed_in_any(
    wanted: dict[str, CorrectionResult], found: dict[str, CorrectionResult]
) -> dict[str, list[str]]:
    """Presets whose results differ, and in what."""
    assert set(wanted) == set(found)
    of_presets = {name: changed(wanted[name], found[name]) for name in wanted}
    return {name: names for name, names in of_presets.items() if names}
