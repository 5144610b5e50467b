"""OpenRLHF weighs tokens whose statistic is within bounds, or clamps their ratios."""

from __future__ import annotations

from rcdiag.trainers.openrlhf.correction import GENERATIONS

__all__ = ["GENERATIONS"]
