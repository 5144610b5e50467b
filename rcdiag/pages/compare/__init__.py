"""Figures and words of `rcdiag compare`: all policies of a table."""

from __future__ import annotations

from rcdiag.pages.compare import pairs, policies

FIGURES = (*policies.FIGURES, *pairs.FIGURES)
