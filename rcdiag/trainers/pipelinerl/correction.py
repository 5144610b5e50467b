"""PipelineRL's losses, whose ratio (trained policy / sampler) includes the mismatch.

Weights change while sequences are sampled; the log-prob that the sampler recorded for a token is
the old one. Source: ServiceNow/PipelineRL commit 58d39345 (2026-06-19),
pipelinerl/finetune/rl/__init__.py (`RLConfig`, `rl_step`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.trainers.settings_table import NotComputed, Settings
from rcdiag.trainers.writing import Facts

UNCLAMPED = Guard(bound=np.inf, epsilon=0.0)


def read(settings: Settings) -> Correction:
    """Return reinforce's weight, the ratio truncated at 1 + epsilon_high, or PPO's bypass mode."""
    loss, high = settings["policy_loss"], settings["epsilon_high"]
    if loss == "gspo":
        raise NotComputed(
            "policy_loss: gspo gives a sequence a weight that depends on all its tokens",
            "use reinforce or ppo; rcdiag does not have this loss",
        )
    if loss == "ppo":
        # The bounds of the clip only affect a logged number, not the weights.
        bounds = f"{1.0 - settings['epsilon_low']!r} {1.0 + high!r}"
        return Correction(mode="bypass", loss="ppo_clip", guard=UNCLAMPED, logging=bounds)
    return Correction(
        weighting=Weighting("token", 1.0 + high, 0.0, "clip"),
        mode="bypass",
        loss="truncated_pg",
        weights_in_loss=True,
        guard=UNCLAMPED,
    )


def bounds_of(correction: Correction) -> tuple[float, float]:
    """Return the bounds beyond which a ratio counts as clamped: PPO's clip, or the weights'."""
    if correction.weighting is not None:
        return -np.inf, correction.weighting.upper
    low, high = correction.logging.split()
    return float(low), float(high)


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return how far above 1 the weights are truncated."""
    weighting = correction.weighting
    return {} if weighting is None else {"epsilon_high": weighting.upper - 1.0}
