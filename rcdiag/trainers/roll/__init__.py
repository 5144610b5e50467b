"""ROLL at commit 8eb27cc2 weighs by four ratios, and filters by ratios and probabilities."""

from __future__ import annotations

from rcdiag.trainers.roll.train_infer import GENERATIONS

__all__ = ["GENERATIONS"]
