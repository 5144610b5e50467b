"""An estimator family has a panel: its table, its figure, and what the script moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.formats import number, percent, with_interval
from rcdiag.pages.svg import to_svg
from rcdiag.pages.sweep.families import Slider, family_figure, sliders
from rcdiag.results import SweepFamily, SweepRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rcdiag.pages.sweep.families import Marker

COLUMNS: dict[str, Callable[[SweepRow], str]] = {
    "kept tokens": lambda row: percent(row.kept_token_share),
    "kept sequences": lambda row: percent(row.kept_sequence_share),
    "kept groups": lambda row: f"{row.kept_groups:,}",
    "ESS tokens": lambda row: number(row.ess_token_applied),
    "ESS sequences": lambda row: with_interval(row.ess_seq_applied),
    "ESS as verl logs it": lambda row: number(row.ess_trainer),
    "mean weight": lambda row: with_interval(row.mean_weight),
    "lost mass": lambda row: with_interval(row.lost_mass),
    "truncation loss": lambda row: number(row.truncation_loss.value),
    "variance": lambda row: number(row.weight_variance),
    "bias": lambda row: number(row.weight_distance),
    "bias bound": lambda row: number(row.bias_bound),
    "reward shift": lambda row: with_interval(row.reward_shift),
    "advantage shift": lambda row: number(row.advantage_shift.value),
    "keep-length correlation": lambda row: number(row.keep_length_correlation),
}


def family_panel(name: str, family: SweepFamily, *, opened: bool) -> dict[str, Any]:
    """Return what the template reads of a family."""
    keys = sliders(family)
    svg, places = _family_svg(name, family)
    configurations = family.configurations.values()
    rows = [
        {
            "at": " ".join(str(key.values.index(row.bounds[key.key])) for key in keys),
            "dots": place,
            "config": "|".join(written.entries[index] for written in configurations),
            "cells": _cells(row, keys),
        }
        for index, (row, place) in enumerate(zip(family.rows, places, strict=True))
    ]
    return {
        "name": name,
        "title": family.title,
        "about": family.about,
        "open": opened,
        "svg": svg,
        "sliders": keys,
        "trainers": list(family.configurations),
        "configs": [written.templates for written in configurations],
        "rows": rows,
    }


def _cells(row: SweepRow, keys: Sequence[Slider]) -> list[str]:
    """Return all texts of a row of the table, in the order of its heads."""
    bounds = [f"{row.bounds[key.key]:.9g}" for key in keys]
    quarters = ["n/a" if isnan(share) else f"{100.0 * share:.1f}%" for share in row.kept_by_length]
    return [*bounds, *(column(row) for column in COLUMNS.values()), *quarters]


MARKER = (
    '<circle class="marker" r="5" fill="none" stroke="var(--ink)" stroke-width="2" '
    'visibility="hidden"/>'
)


def _family_svg(name: str, family: SweepFamily) -> tuple[str, list[str]]:
    """Return a family's figure, and where its markers stand for each row: "x y x y ..."."""
    figure, markers = family_figure(family)
    svg = to_svg(figure, f"family-{name}")
    # Drawing has laid the figure out: from here on its axes tell where a number stands in them.
    places = [_in_svg(figure, marker) for marker in markers]
    svg = svg.replace("</svg>", MARKER * len(places) + "</svg>")
    return svg, [" ".join(f"{x:.1f} {y:.1f}" for x, y in row) for row in zip(*places, strict=True)]


def _in_svg(figure: Figure, marker: Marker) -> list[tuple[float, float]]:
    """Return a marker's places in SVG user units: points, from the top."""
    height = figure.get_figheight() * 72.0
    places = np.array(marker.places, dtype=float)
    pixels = marker.axes.transData.transform(places) * 72.0 / figure.dpi
    return [(float(x), height - float(y)) for x, y in pixels]
