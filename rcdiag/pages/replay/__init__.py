"""The page of `rcdiag replay` shows the update that each preset would have made."""

from __future__ import annotations

from typing import Any

from rcdiag.pages.definitions import Page
from rcdiag.pages.replay import factors, model_step, pull
from rcdiag.pages.replay.words import TAGS, answer, divided
from rcdiag.results import ReplayResult


def context(result: ReplayResult) -> dict[str, Any]:
    """Return which parts the result has, and its words."""
    presets = result.presets.items()
    return {
        "with_model": result.model is not None,
        "tags": TAGS,
        "splits": {name: preset for name, preset in presets if preset.split is not None},
        "divided": divided,
    }


PAGE = Page(name="replay", template="replay/page.html.j2", context=context, answer=answer)

FIGURES = (*factors.FIGURES, *pull.FIGURES, *model_step.FIGURES)
