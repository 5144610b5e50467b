"""Axolotl's own GRPO trainer weighs by vLLM's log-probs too, with bounds of its own."""

from __future__ import annotations

from rcdiag.trainers.axolotl.async_trainer import GENERATIONS

__all__ = ["GENERATIONS"]
