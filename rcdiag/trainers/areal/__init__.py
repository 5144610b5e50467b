"""AReaL 1.0.4: rejection sampling of its decoupled loss, and M2PO."""

from __future__ import annotations

from rcdiag.trainers.areal.generations import GENERATIONS

__all__ = ["GENERATIONS"]
