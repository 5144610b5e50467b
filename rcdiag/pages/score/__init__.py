"""The page of `rcdiag score` shows one pair of policies."""

from __future__ import annotations

from typing import Any

from rcdiag.pages.definitions import Page
from rcdiag.pages.score import bounds, profiles, sequences, steps, tokens
from rcdiag.pages.score.logged import lines_of
from rcdiag.pages.score.words import alone, answer, clusters, correction_rows, raw_ess
from rcdiag.results import ScoreResult
from rcdiag.statistics.metrics import FAMILIES, METRICS


def context(result: ScoreResult) -> dict[str, Any]:
    """Return the words of metrics and the tables that the template writes."""
    raw = raw_ess(result)
    trainers = [correction.trainer for correction in result.corrections.values()]
    return {
        "metrics": METRICS,
        "families": FAMILIES,
        "headlines": [name for name, metric in METRICS.items() if metric.headline],
        "clusters": clusters(result),
        "alone": alone(result.behavior),
        "correction_rows": correction_rows(result),
        "raw_ess": f" ({raw})" if raw else "",
        "logged_lines": [] if result.logged is None else lines_of(result.logged),
        "trainer": trainers[0] if trainers else None,
        "provenance_of_policies": result.scoring,
    }


PAGE = Page(name="score", template="score/page.html.j2", context=context, answer=answer)

FIGURES = (
    *tokens.FIGURES,
    *profiles.FIGURES,
    *sequences.FIGURES,
    *bounds.FIGURES,
    *steps.FIGURES,
)
