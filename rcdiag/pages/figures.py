"""The registry of figures of all kinds of results, in the order of pages and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rcdiag.pages.definitions import FigureSpec
from rcdiag.registry import Registry
from rcdiag.results import Result


def _shipped() -> Sequence[FigureSpec]:
    """Import the modules of figures, which the terminal does not need."""
    from rcdiag.pages.compare import pairs, policies
    from rcdiag.pages.diagnose import experiments, logs
    from rcdiag.pages.replay import factors, model_step, pull
    from rcdiag.pages.score import (
        bounds,
        concentration,
        exceedance,
        profiles,
        routing,
        sequences,
        steps,
        tokens,
        training,
    )
    from rcdiag.pages.sweep import candidates, families, forecast

    return (
        *exceedance.FIGURES,
        *concentration.FIGURES,
        *profiles.FIGURES,
        *steps.FIGURES,
        *training.FIGURES,
        *tokens.FIGURES,
        *routing.FIGURES,
        *sequences.FIGURES,
        *bounds.FIGURES,
        *policies.FIGURES,
        *pairs.FIGURES,
        *experiments.FIGURES,
        *logs.FIGURES,
        *candidates.FIGURES,
        *families.FIGURES,
        *forecast.FIGURES,
        *factors.FIGURES,
        *pull.FIGURES,
        *model_step.FIGURES,
    )


FIGURES: Registry[FigureSpec] = Registry("figure", _shipped)


def applying(result: Result) -> Iterator[FigureSpec]:
    """Yield the figures that a result has data for."""
    return (spec for spec in FIGURES.values() if spec.kind == result.kind and spec.applies(result))
