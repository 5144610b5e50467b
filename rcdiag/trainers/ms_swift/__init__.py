"""ms-swift, which optionally weights the loss by ratios with an upper bound."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, value
from rcdiag.trainers.ms_swift.correction import facts, read
from rcdiag.trainers.ms_swift.losses import UPDATE
from rcdiag.trainers.ms_swift.metrics import metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import generation


def of_null_and_bnpo(document: Document, choice: LossChoice) -> LossChoice:
    """Turn off bounds of fipo that are null; make bnpo divide by the kept tokens."""
    own = dict(choice.own)
    for name in ("fipo_clip_range", "fipo_safety_threshold"):
        if value(document, name, 0) is None:
            own[name] = None
    by_kept = value(document, "loss_type") == "bnpo"
    return replace(choice, own=own, denominator="kept" if by_kept else None)


GENERATIONS = (
    generation(
        "ms-swift-4.6",
        package=__name__,
        presets={
            "off": {},
            "token_truncate": {"rollout_importance_sampling_mode": "token_truncate"},
            "token_mask": {"rollout_importance_sampling_mode": "token_mask"},
            "sequence_truncate": {"rollout_importance_sampling_mode": "sequence_truncate"},
            "sequence_mask": {"rollout_importance_sampling_mode": "sequence_mask"},
        },
        read=read,
        loss=of_null_and_bnpo,
        facts=facts,
        metrics=metrics,
        update=UPDATE,
    ),
)
