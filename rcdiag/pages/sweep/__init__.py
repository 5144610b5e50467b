"""Figures and words of `rcdiag sweep`: estimators over their thresholds, and which to take."""

from __future__ import annotations

from rcdiag.pages.sweep import candidates, families, forecast

FIGURES = (*candidates.FIGURES, *families.FIGURES, *forecast.FIGURES)
