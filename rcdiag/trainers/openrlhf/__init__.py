"""OpenRLHF: weights of tokens whose statistic is within bounds, or clamped ratios."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.openrlhf.correction import by_gate, by_type, facts
from rcdiag.trainers.openrlhf.losses import UPDATE
from rcdiag.trainers.openrlhf.metrics import metrics_of_gates, metrics_of_types
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import generation


def clip_range(document: Document, choice: LossChoice) -> LossChoice:
    """Add the clip range: eps_clip_low_high is two numbers, eps_clip is one for both ends."""
    clip = number(document, "actor.eps_clip")
    ends = value(document, "actor.eps_clip_low_high")
    if ends is None:
        ends = (clip, clip)
    elif not (isinstance(ends, (list, tuple)) and len(ends) == 2):
        raise RcdiagError(
            f"actor.eps_clip_low_high: wanted two numbers, got {ends!r}",
            "for example --actor.eps_clip_low_high 0.2 0.28",
        )
    if ends[0] is None:
        return choice
    own = {"clip_low": float(ends[0]), "clip_high": float(ends[1])}
    return replace(choice, own={**choice.own, **own})


_BOTH: dict[str, Any] = {
    "package": __name__,
    "facts": facts,
    "loss": clip_range,
    "update": UPDATE,
}
GENERATIONS = (
    generation(
        "openrlhf-0.11.0",
        presets={
            "off": {},
            # Named as the equivalent presets of 0.11.2.
            "token_clip": {"is_correction_enable": True, "is_correction_type": "tis"},
            "token_mask": {"is_correction_enable": True, "is_correction_type": "icepop"},
            "seq_mask": {"is_correction_enable": True, "is_correction_type": "seq-mask-tis"},
        },
        read=by_type,
        metrics=metrics_of_types,
        **_BOTH,
    ),
    generation(
        "openrlhf-0.11.2",
        presets={
            "off": {},
            "token_clip": {"is_correction_level": "token", "is_correction_mode": "clip"},
            "token_mask": {"is_correction_level": "token", "is_correction_mode": "mask"},
            "seq_mask": {"is_correction_level": "seq", "is_correction_mode": "mask"},
        },
        read=by_gate,
        metrics=metrics_of_gates,
        **_BOTH,
    ),
)
