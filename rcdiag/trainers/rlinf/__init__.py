"""RLinf at commit a3816b59: a clamped ratio on advantages, and a decoupled loss for robots."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice
from rcdiag.trainers.rlinf.correction import facts, read
from rcdiag.trainers.rlinf.losses import UPDATE
from rcdiag.trainers.rlinf.metrics import metrics
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.trainer import generation


def without_dual_clip(document: Document, choice: LossChoice) -> LossChoice:
    """Turn off the dual clip if the file says null, as RLinf's examples do; it is 3 if unset."""
    said = document.find("algorithm.clip_ratio_c")
    if said is MISSING or said is not None:
        return choice
    return replace(choice, own={**choice.own, "clip_c": None})


GENERATIONS = (
    generation(
        "rlinf",
        package=__name__,
        presets={
            "default": {},
            "token_tis": {"importance_sampling_fix": True, "importance_sampling_clip": 2.0},
            "decoupled_raw": {"loss_type": "decoupled_actor_critic"},
            "decoupled_threshold": {
                "loss_type": "decoupled_actor_critic",
                "behave_weight_threshold": 2.0,
            },
            "bypass_ppo": {"recompute_logprobs": False},
        },
        read=read,
        metrics=metrics,
        update=UPDATE,
        whole=lambda document: document.has("algorithm.ratio_clip_eps"),
        loss=without_dual_clip,
        facts=facts,
    ),
)
