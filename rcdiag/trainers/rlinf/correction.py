"""RLinf's weights old / rollout: a clamped ratio, or an unbounded one in the decoupled loss.

Sources: RLinf/RLinf commit a3816b59 (2026-08-22), rlinf/workers/actor/fsdp_actor_worker.py
(`training_step`), rlinf/algorithms/losses.py (`compute_decoupled_ppo_actor_loss`) and
rlinf/config.py (`validate_reasoning_cfg`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_table import NotComputed, Refused, Settings
from rcdiag.trainers.writing import Facts

RAW = Weighting("token", np.inf, 0.0, "clip")  # the ratio, without a bound
UNCLAMPED = Guard(bound=np.inf, epsilon=0.0)
DECOUPLED = "decoupled"  # `Correction.logging` of the decoupled loss


def read(settings: Settings) -> Correction:
    """Return the weights of the chosen loss, and the rejection of tokens."""
    if settings["loss_type"] == "decoupled_actor_critic":
        return _decoupled(settings)
    bound = settings["importance_sampling_clip"]
    if not settings["importance_sampling_fix"]:
        if settings["recompute_logprobs"]:
            return Correction(guard=UNCLAMPED)
        return Correction(mode="bypass", guard=UNCLAMPED)
    if bound is None:
        raise Refused(
            "importance_sampling_clip: not set; RLinf stops without it",
            "its examples have 1.0 and 2.0",
        )
    return Correction(weighting=Weighting("token", bound), guard=UNCLAMPED)


def _decoupled(settings: Settings) -> Correction:
    """Return the unbounded ratio as weight; tokens with a ratio above the threshold are dropped."""
    if not settings["recompute_logprobs"]:
        raise NotComputed(
            "recompute_logprobs: off, so that old log-probs interpolate rollout and current ones",
            "a table does not have the version of each action; turn it on",
        )
    threshold = settings["behave_weight_threshold"]
    dropped = () if threshold is None else (Rejection("token", threshold),)
    return Correction(weighting=RAW, rejections=dropped, guard=UNCLAMPED, logging=DECOUPLED)


def facts(correction: Correction, facts: Facts) -> Facts:
    """Tell whether a rejection has a lower bound."""
    return {"lower_bound": any((one.lower or 0.0) > 0.0 for one in correction.rejections)}
