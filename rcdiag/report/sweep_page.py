"""What the page of a sweep shows."""

from __future__ import annotations

import importlib.resources
from typing import Any

from rcdiag.corrections.emit import emit
from rcdiag.errors import RcdiagError
from rcdiag.report.draw_sweep import family_svg
from rcdiag.report.sweep_tables import COLUMNS, TRAINERS, cells, configs, sliders
from rcdiag.results import SweepFamily, SweepResult
from rcdiag.sweeping.candidates import CANDIDATES

ALWAYS_OPEN = ("token_tis", "seq_tis")


def context(result: SweepResult) -> dict[str, Any]:
    """Values of the template."""
    advice = result.recommendation
    chosen = next((c.family for c in advice.candidates if c.name == advice.choice), None)
    return {
        "settings": f"{sum(len(each.rows) for each in result.families.values()):,}",
        "candidates": sorted(advice.candidates, key=lambda each: (each.rank or 99, each.name)),
        "emitted": to_paste(advice.choice),
        "headings": list(COLUMNS),
        "trainers": TRAINERS,
        "families": [
            _family(name, family, name in (*ALWAYS_OPEN, chosen))
            for name, family in result.families.items()
        ],
        "script": importlib.resources.files("rcdiag.report").joinpath("sweep.js").read_text(),
    }


def to_paste(choice: str | None) -> dict[str, str]:
    """Trainer -> the configuration of a candidate; trainers that cannot do it say so."""
    if choice is None:
        return {}
    return {trainer: _text(choice, trainer) for trainer in TRAINERS}


def _text(choice: str, trainer: str) -> str:
    try:
        return emit(CANDIDATES[choice].correction, trainer).text
    except RcdiagError as error:
        return f"# {error.message}; {error.hint}"


def _family(name: str, family: SweepFamily, opened: bool) -> dict[str, Any]:
    keys = sliders(family)
    svg, dots = family_svg(name, family, keys)
    templates, entries = configs(name, family)
    rows = [
        {
            "at": " ".join(str(each.values.index(row.bounds[each.key])) for each in keys),
            "dots": place,
            "config": entry,
            "cells": cells(row, keys),
        }
        for row, place, entry in zip(family.rows, dots, entries, strict=True)
    ]
    return {
        "name": name,
        "title": family.title,
        "about": family.about,
        "open": opened,
        "svg": svg,
        "sliders": keys,
        "configs": templates,
        "rows": rows,
    }
