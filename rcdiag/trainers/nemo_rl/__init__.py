"""NeMo-RL at commit 7ea279ab: weights of its clipped loss, and a filter of sequences."""

from __future__ import annotations

from rcdiag.trainers.nemo_rl.generations import GENERATIONS

__all__ = ["GENERATIONS"]
