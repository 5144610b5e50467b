"""Figures of all kinds of results are listed in the order in which pages and files show them."""

from __future__ import annotations

from collections.abc import Iterator

from rcdiag.pages import compare, diagnose, replay, score, sweep
from rcdiag.pages.definitions import FigureSpec
from rcdiag.registry import Registry
from rcdiag.results import Result

FIGURES: Registry[FigureSpec] = Registry(
    "figure", (*score.FIGURES, *compare.FIGURES, *diagnose.FIGURES, *sweep.FIGURES, *replay.FIGURES)
)


def applying(result: Result) -> Iterator[FigureSpec]:
    """Return every figure that the result has data for."""
    return (spec for spec in FIGURES.values() if spec.kind == result.kind and spec.applies(result))
