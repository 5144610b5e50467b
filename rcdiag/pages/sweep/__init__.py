"""The page of `rcdiag sweep` shows what to take, and every family over its thresholds."""

from __future__ import annotations

import importlib.resources
from typing import Any

from rcdiag.pages.definitions import Page
from rcdiag.pages.sweep import candidates, families, forecast
from rcdiag.pages.sweep.panels import COLUMNS, family_panel
from rcdiag.pages.sweep.words import answer, forecast_test
from rcdiag.results import SweepResult

ALWAYS_OPEN = ("token_tis", "seq_tis")


def context(result: SweepResult) -> dict[str, Any]:
    """Return the candidates by rank, and every family's panel with the script that moves it."""
    advice = result.recommendation
    chosen = next((c.family for c in advice.candidates if c.name == advice.choice), None)
    return {
        "settings": f"{sum(len(family.rows) for family in result.families.values()):,}",
        "candidates": sorted(advice.candidates, key=lambda c: (c.rank or 99, c.name)),
        "scored": any(c.efficiency.value is not None for c in advice.candidates),
        "headings": list(COLUMNS),
        "forecast_test": forecast_test(result.forecast),
        "stored_configurations": any(f.configurations for f in result.families.values()),
        "families": [
            family_panel(name, family, opened=name in (*ALWAYS_OPEN, chosen))
            for name, family in result.families.items()
        ],
        "script": importlib.resources.files(__name__).joinpath("sliders.js").read_text(),
    }


PAGE = Page(name="sweep", template="sweep/page.html.j2", context=context, answer=answer)

FIGURES = (*candidates.FIGURES, *families.FIGURES, *forecast.FIGURES)
