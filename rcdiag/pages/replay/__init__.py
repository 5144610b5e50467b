"""Figures and words of `rcdiag replay`: the update that each preset would have made."""

from __future__ import annotations

from rcdiag.pages.replay import factors, model_step, pull

FIGURES = (*factors.FIGURES, *pull.FIGURES, *model_step.FIGURES)
