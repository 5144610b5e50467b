"""TRL weighs the loss by the ratio of its own log-probs to vLLM's, by default."""

from __future__ import annotations

from rcdiag.trainers.trl.grpo import GENERATIONS

__all__ = ["GENERATIONS"]
