"""The page of `rcdiag diagnose` shows the causes and the experiments that tell them."""

from __future__ import annotations

from typing import Any

from rcdiag.pages.definitions import Page
from rcdiag.pages.diagnose import experiments
from rcdiag.pages.diagnose.words import answer, posterior_rows
from rcdiag.results import DiagnoseResult


def context(result: DiagnoseResult) -> dict[str, Any]:
    """Return the sentences on whose weights made the rows."""
    return {"posterior": posterior_rows(result)}


PAGE = Page(name="diagnose", template="diagnose/page.html.j2", context=context, answer=answer)

FIGURES = experiments.FIGURES
