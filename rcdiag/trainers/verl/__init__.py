"""verl from 0.6.0 on has a rollout correction, policy losses and a configuration.

Generations differ in how they reject: not at all but by weights (`weights_only.py`), by ratios
(`ratio_rejection.py`), by k1, k2 and k3 (`k_rejection.py`).
"""

from __future__ import annotations

from rcdiag.trainers.verl import k_rejection, ratio_rejection, weights_only
from rcdiag.trainers.verl.family import FAMILY

__all__ = ["FAMILY", "GENERATIONS"]

GENERATIONS = (
    *weights_only.GENERATIONS,
    *ratio_rejection.GENERATIONS,
    *k_rejection.GENERATIONS,
)
