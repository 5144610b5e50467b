"""Figures of `rcdiag compare`."""

from __future__ import annotations

from rcdiag.report.draw_compare import (
    by_probability,
    densities,
    heat_map,
    size_of_panels,
    waterfall,
)
from rcdiag.report.style import FigureSpec
from rcdiag.results import CompareResult


def _by_policies(result: CompareResult) -> tuple[float, float]:
    """Room for a cell or a bar of each; beyond seven policies over the whole page."""
    count = len(result.policies)
    return (5.4 if count <= 7 else 11.0, 2.2 + 0.42 * count)


FIGURES_OF_COMPARE: dict[str, FigureSpec] = {
    "matrix": FigureSpec(
        "KL of every pair",
        "A cell is KL(behavior || target) by k3, nats per token; colours are logarithmic. Pale "
        "blocks are policies that agree; a dark row and column is one that stands apart.",
        heat_map,
        size=_by_policies,
    ),
    "ladder": FigureSpec(
        "What each step adds",
        "From the sampler at the top to the trainer at the bottom; parts add up to the whole, a "
        "part to the left takes back what others did. Grey steps are at the noise floor.",
        waterfall,
        size=_by_policies,
    ),
    "densities": FigureSpec(
        "Log-prob of the same tokens under two policies",
        "A panel is a pair. On the diagonal they agree; the darker a cell, the more tokens "
        "(logarithmic).",
        densities,
        size=size_of_panels,
    ),
    "probability": FigureSpec(
        "Mismatch by probability",
        "rms log-ratio (nats) in bins of the geometric mean of both probabilities, with 95% "
        "intervals by cluster. Rounding grows towards rare tokens; a level that does not is "
        "another cause.",
        by_probability,
        size=size_of_panels,
    ),
}
