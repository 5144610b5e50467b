"""ms-swift weighs the loss by ratios that are bounded from above, if it is asked to."""

from __future__ import annotations

from rcdiag.trainers.ms_swift.rollout_correction import GENERATIONS

__all__ = ["GENERATIONS"]
