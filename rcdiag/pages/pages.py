"""What each kind of page shows besides result, verdict and figures: to add one, one line in PAGES.

The template has the name of the kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rcdiag.pages.sweep import tables as sweep_page
from rcdiag.pages.words import clusters, correction_rows
from rcdiag.results import CompareResult, Denominator, ReplayResult, ScoreResult
from rcdiag.statistics.metrics import FAMILIES, METRICS


@dataclass(frozen=True, slots=True)
class Page:
    """A kind of page: the values that its template reads."""

    context: Callable[[Any], dict[str, Any]]


def _score(result: ScoreResult) -> dict[str, Any]:
    return {
        "metrics": METRICS,
        "families": FAMILIES,
        "headlines": [name for name, metric in METRICS.items() if metric.headline],
        "clusters": clusters(result),
        "correction_rows": correction_rows(result),
        "trainer": next((each.trainer for each in result.corrections.values()), None),
        "provenance_of_policies": result.policies,
    }


def _compare(result: CompareResult) -> dict[str, Any]:
    about = {name: each.provenance for name, each in result.policies.items() if each.provenance}
    return {"provenance_of_policies": about}


def _replay(result: ReplayResult) -> dict[str, Any]:
    return {
        "with_model": result.model is not None,
        "tags": {**TAGS, "cannot judge": "note"},
        "splits": {name: each for name, each in result.presets.items() if each.split is not None},
        "divided": _divided,
    }


def _divided(by: Denominator) -> str:
    return "nothing" if by.unit == "nothing" else f"{by.used:,.0f} {by.unit}"


TAGS = {name: name for name in ("ok", "note", "warning", "error")}

PAGES: dict[str, Page] = {
    "score": Page(_score),
    "compare": Page(_compare),
    "sweep": Page(sweep_page.context),
    "replay": Page(_replay),
}
