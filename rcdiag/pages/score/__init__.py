"""Figures and words of `rcdiag score`: one pair of policies."""

from __future__ import annotations

from rcdiag.pages.score import bounds, concentration, exceedance, profiles, sequences, steps, tokens

FIGURES = (
    *exceedance.FIGURES,
    *concentration.FIGURES,
    *profiles.FIGURES,
    *steps.FIGURES,
    *tokens.FIGURES,
    *sequences.FIGURES,
    *bounds.FIGURES,
)
