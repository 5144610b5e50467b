"""Figures of `rcdiag sweep`, besides those of its families."""

from __future__ import annotations

from rcdiag.report.draw_sweep import forecast, ranking, trade_offs
from rcdiag.report.style import FigureSpec

FIGURES_OF_SWEEP: dict[str, FigureSpec] = {
    "ranking": FigureSpec(
        "Candidates",
        "Expected progress of one step of the best length, relative to a step without noise or "
        "bias, with 95% intervals by prompt group. Pale ones break a constraint; the orange one "
        "is the choice. Where intervals overlap the simpler one wins.",
        ranking,
        lambda result: any(
            each.efficiency.value is not None for each in result.recommendation.candidates
        ),
    ),
    "trade-off": FigureSpec(
        "Variance against bias",
        "A line is a family over its bounds: how far its weights are from the ratios of whole "
        "sequences, E|ratio - weight|, and the effective sample size that this buys. Up and left "
        "is better; weights by token are far from the ratios of long sequences at any bound.",
        trade_offs,
    ),
    "forecast": FigureSpec(
        "Longer responses",
        "By the law of single tokens. Dots are what was seen in bins of length that the law was "
        "not fitted on: far from the lines the forecast cannot be trusted.",
        forecast,
        lambda result: bool(result.forecast.points),
    ),
}
