"""SkyRL 0.4.0: masks and weights before the loss, and losses on the rollout's log-probs."""

from __future__ import annotations

from rcdiag.trainers.skyrl.generations import GENERATIONS

__all__ = ["GENERATIONS"]
