"""Tinker's losses, whose ratio (trained policy / sampler) includes the mismatch.

Servers compute the loss, and their code is not public: losses are as the cookbook describes them.
Source: thinking-machines-lab/tinker-cookbook commit 9dfcc3a2 (2026-08-19),
tutorials/202_loss_functions.py (losses and their thresholds), tinker_cookbook/rl/train.py
(`Config.loss_fn`, `Config.loss_fn_config`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.trainers.settings_table import NotComputed, Settings

UNCLAMPED = Guard(bound=np.inf, epsilon=0.0)
# Tinker's thresholds if loss_fn_config does not set them.
THRESHOLDS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}


def thresholds(settings: Settings, loss: str) -> tuple[float, float]:
    """Return the lower and the upper bound of the ratio."""
    given = (settings[f"loss_fn_config.clip_{side}_threshold"] for side in ("low", "high"))
    ends = zip(given, THRESHOLDS[loss], strict=True)
    low, high = (default if one is None else one for one, default in ends)
    return low, high


def read(settings: Settings) -> Correction:
    """Return the weight that the chosen loss computes from the ratio, or PPO's bypass mode."""
    loss = settings["loss_fn"]
    if loss == "dro":
        raise NotComputed(
            "loss_fn: dro is not described in the cookbook, and its code is not public",
            "importance_sampling, ppo or cispo",
        )
    if loss == "ppo":
        return Correction(mode="bypass", loss="ppo_clip", guard=UNCLAMPED)
    bounds = (0.0, np.inf) if loss == "importance_sampling" else thresholds(settings, loss)
    return Correction(
        weighting=Weighting("token", bounds[1], bounds[0], "clip"),
        mode="bypass",
        loss="importance_weighted" if loss == "importance_sampling" else loss,
        weights_in_loss=True,
        guard=UNCLAMPED,
    )
