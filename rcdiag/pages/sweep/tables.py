"""The tables of a sweep's page: cells, sliders, and the configuration of every row.

What the page of a sweep shows.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.pages.sweep.figures import Slider, family_svg, sliders
from rcdiag.pages.words import interval, number, percent
from rcdiag.results import MetricValue, SweepFamily, SweepResult, SweepRow
from rcdiag.trainers.emit import emit, on_sweep_page
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.families import FAMILIES

NUMBER = re.compile(r"(?<![A-Za-z0-9.])\d[\d.]*(?:e[+-]?\d+)?")
MARK = "\u0001"


def _with_interval(value: MetricValue) -> str:
    ends = interval(value) if value.low != value.high else ""
    return f"{number(value.value)} ({ends})" if ends else number(value.value)


COLUMNS: dict[str, Callable[[SweepRow], str]] = {
    "kept tokens": lambda row: percent(row.kept_token_share),
    "kept sequences": lambda row: percent(row.kept_sequence_share),
    "kept groups": lambda row: f"{row.kept_groups:,}",
    "ESS tokens": lambda row: number(row.ess_token),
    "ESS sequences": lambda row: _with_interval(row.ess_seq),
    "ESS as verl logs it": lambda row: number(row.ess_trainer),
    "mean weight": lambda row: _with_interval(row.mean_weight),
    "lost mass": lambda row: _with_interval(row.lost_mass),
    "truncation loss": lambda row: number(row.truncation_loss.value),
    "variance": lambda row: number(row.variance),
    "bias": lambda row: number(row.bias),
    "bias bound": lambda row: number(row.bias_bound),
    "reward shift": lambda row: _with_interval(row.reward_shift),
    "advantage shift": lambda row: number(row.advantage_shift.value),
    "keep-length correlation": lambda row: number(row.keep_length_correlation),
}


def cells(row: SweepRow, keys: Sequence[Slider]) -> list[str]:
    """All texts of a row of the table, in the order of its heads."""
    bounds = [f"{row.bounds[each.key]:.9g}" for each in keys]
    quarters = ["n/a" if isnan(each) else f"{100.0 * each:.1f}%" for each in row.kept_by_length]
    return [*bounds, *(column(row) for column in COLUMNS.values()), *quarters]


def configs(name: str, family: SweepFamily) -> tuple[list[list[str]], list[str]]:
    """Templates of every trainer, and for every row which template and which numbers.

    Texts of one family differ in numbers alone: a template and its numbers are a tenth of them.
    """
    texts = [[_text(name, row, trainer) for row in family.rows] for trainer in on_sweep_page()]
    templates, entries = zip(*(_factored(each) for each in texts), strict=True)
    return list(templates), ["|".join(each) for each in zip(*entries, strict=True)]


def _text(name: str, row: SweepRow, trainer: str) -> str | None:
    try:
        return emit(FAMILIES[name].correction(row.bounds), trainer).text
    except RcdiagError:
        return None  # the trainer has no such estimator


def _factored(texts: Sequence[str | None]) -> tuple[list[str], list[str]]:
    templates: dict[str, int] = {}
    entries = []
    for text in texts:
        if text is None:
            entries.append("")
            continue
        index = templates.setdefault(NUMBER.sub(MARK, text), len(templates))
        entries.append(" ".join([str(index), *NUMBER.findall(text)]))
    return list(templates), entries


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
        "trainers": on_sweep_page(),
        "families": [
            _family(name, family, name in (*ALWAYS_OPEN, chosen))
            for name, family in result.families.items()
        ],
        "script": importlib.resources.files("rcdiag.pages").joinpath("sweep.js").read_text(),
    }


def to_paste(choice: str | None) -> dict[str, str]:
    """Trainer -> the configuration of a candidate; trainers that cannot do it say so."""
    if choice is None:
        return {}
    return {trainer: _text_of_sweep_page(choice, trainer) for trainer in on_sweep_page()}


def _text_of_sweep_page(choice: str, trainer: str) -> str:
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
