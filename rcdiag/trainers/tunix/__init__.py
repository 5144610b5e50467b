"""Tunix at commit c7d8950f: truncated token weights, or the sampler as old policy."""

from __future__ import annotations

from rcdiag.trainers.trainer import generation
from rcdiag.trainers.tunix.correction import read
from rcdiag.trainers.tunix.losses import UPDATE
from rcdiag.trainers.tunix.metrics import metrics

GENERATIONS = (
    generation(
        "tunix",
        package=__name__,
        presets={
            "default": {},
            "token_tis": {"sampler_is": "token"},
            "recomputed": {"use_rollout_logps": False},
        },
        read=read,
        metrics=metrics,
        update=UPDATE,
        whole=lambda document: document.has("agentic_grpo_config"),
    ),
)
