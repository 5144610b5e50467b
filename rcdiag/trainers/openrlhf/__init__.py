"""OpenRLHF weighs tokens whose statistic is within bounds, or clamps their ratios."""

from __future__ import annotations

from rcdiag.trainers.openrlhf.policy_loss import GENERATIONS

__all__ = ["GENERATIONS"]
