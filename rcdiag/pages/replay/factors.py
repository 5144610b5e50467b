"""The figure of both factors of the ratio: sampler to trainer, trainer to current policy."""

from __future__ import annotations

import numpy as np

from rcdiag.pages.charts import Chart, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.replay.words import FACTORS, factor_name
from rcdiag.pages.score.exceedance import beyond_panel, shares_beyond
from rcdiag.results import ReplayResult


def factors(result: ReplayResult) -> Chart:
    """Return for each factor the share of tokens whose |log-ratio| exceeds a size."""
    beyond = {
        name: shares_beyond(factor.log_ratio_histogram)
        for name, factor in result.factors.items()
        if name != "product"
    }
    sizes = max(([at for at, *_ in rows] for rows in beyond.values()), key=len, default=[])
    shares = {
        name: [(above + below) or None for _, above, below in rows] for name, rows in beyond.items()
    }
    clip = abs(float(np.log(1.0 + result.clip_high)))
    rules = [ReferenceLine(at=clip, label=f"clip {1.0 + result.clip_high:g}")]
    tones: dict[str, Tone] = {"mismatch": "first"}
    lines = [
        (
            FACTORS.get(name, name),
            factor_name(name, result.factors[name]),
            tones.get(name, "second"),
        )
        for name in shares
    ]
    return Chart(
        columns=("|log-ratio|", *(column for column, *_ in lines)),
        rows=[
            (size, *(row[place] if place < len(row) else None for row in shares.values()))
            for place, size in enumerate(sizes)
        ],
        panels=[beyond_panel(lines, rules if result.clip_high > 0 else [])],
    )


def _adds(result: ReplayResult) -> str:
    """Name the factors in which all tokens agree, which have no line."""
    still = [
        FACTORS.get(name, name)
        for name, factor in result.factors.items()
        if name != "product" and not factor.log_ratio_abs_max
    ]
    return f"No line for {', '.join(still)}: all tokens agree." if still else ""


FIGURES = (
    FigureSpec(
        name="ratio-factors",
        kind="replay",
        title="Distribution of the two factors",
        says="Decoupled presets weight by the first factor, sampler to trainer, and clip the "
        "second, the drift within the update; bypass uses their product. Dashed lines are the "
        "clip range of PPO.",
        chart=factors,
        adds=_adds,
    ),
)
