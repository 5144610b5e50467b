"""SkyRL 0.4.0: masks and weights before the loss, and losses relative to the rollout policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.skyrl.correction import facts, file_findings, ignored, read
from rcdiag.trainers.skyrl.losses import UPDATE
from rcdiag.trainers.skyrl.metrics import metrics
from rcdiag.trainers.trainer import Config, generation


def clip_range(document: Document, choice: LossChoice) -> LossChoice:
    """Add the bounds of the chosen loss, which has its own block of settings."""
    kind = value(document, "algorithm.policy_loss_type", "regular")
    loss, places = choice.loss, ("algorithm.eps_clip_low", "algorithm.eps_clip_high")
    if kind == "cispo":
        places = ("cispo.cispo_eps_clip_low", "cispo.cispo_eps_clip_high")
        if value(document, "cispo.cispo_anchor") == "rollout":
            loss = "cispo_rollout"
    elif kind == "dppo":
        places = ("dppo.delta_low", "dppo.delta_high")
        if value(document, "dppo.dppo_type") == "binary_kl":
            loss = "dppo_kl"
    own: dict[str, Any] = {}
    for name, place in zip(("clip_low", "clip_high"), places, strict=True):
        if (bound := number(document, place)) is not None:
            own[name] = bound
    own |= choice.own
    if kind == "dual_clip":
        bound = number(document, "algorithm.clip_ratio_c")
        own["clip_c"] = 3.0 if bound is None else bound
    return replace(choice, loss=loss, own=own)


# For modes that are off by default, the bounds are those suggested in the code's comments.
_PRESETS: Mapping[str, Config] = {
    "default": {},
    "token_tis": {"tis_ratio_type": "token"},
    "sequence_tis": {"tis_ratio_type": "sequence"},
    "geometric_mask": {"sequence_mask_metric": "geometric"},
    "product_mask": {"sequence_mask_metric": "product"},
    "outlier_mask": {
        "outlier_token_is_threshold_low": 1e-4,
        "outlier_token_is_threshold_high": 100.0,
    },
    "token_mask": {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0},
    "loss_rollout_is": {"policy_loss_type": "rollout_is"},
    "loss_cispo_rollout": {"policy_loss_type": "cispo", "cispo_anchor": "rollout"},
    "loss_dppo_tv": {"policy_loss_type": "dppo"},
    "loss_dppo_kl": {
        "policy_loss_type": "dppo",
        "dppo_type": "binary_kl",
        "delta_low": 0.05,
        "delta_high": 0.05,
    },
}
GENERATIONS = (
    generation(
        "skyrl-0.4",
        package=__name__,
        presets=_PRESETS,
        read=read,
        ignored=ignored,
        file_findings=file_findings,
        loss=clip_range,
        facts=facts,
        metrics=metrics,
        update=UPDATE,
    ),
)
