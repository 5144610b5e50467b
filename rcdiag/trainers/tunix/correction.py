"""Tunix's truncated token ratios, or the sampler's log-probs used as the old ones.

Source: google/tunix commit c7d8950f (2026-08-21), tunix/rl/agentic/agentic_grpo_learner.py
(`GRPOConfig`, `_sampler_trainer_agreement`) and tunix/rl/grpo/grpo_learner.py.
"""

from __future__ import annotations

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.trainers.settings_table import Settings

EXACT = Guard(epsilon=0.0)  # its means have no epsilon in the denominator
UNSEEN = "without the sampler's log-probs"  # value of `Correction.logging` if they are not kept


def read(settings: Settings) -> Correction:
    """Return the truncated token ratio as weight, or an update without weights."""
    level, upper = settings["sampler_is"], settings["sampler_is_threshold"]
    if not settings["use_rollout_logps"]:
        return Correction(guard=EXACT, logging=UNSEEN)
    if level is None:
        return Correction(mode="bypass", guard=EXACT)
    return Correction(weighting=Weighting(level, upper), guard=EXACT)
