"""tinker-cookbook at commit 9dfcc3a2: Tinker's losses use the ratio to the sampler."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, number
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.tinker_cookbook.correction import THRESHOLDS, read
from rcdiag.trainers.tinker_cookbook.losses import UPDATE
from rcdiag.trainers.tinker_cookbook.metrics import metrics
from rcdiag.trainers.trainer import generation


def with_clip(document: Document, choice: LossChoice) -> LossChoice:
    """Add the clip range, which Tinker writes as ratios, with different defaults for each loss."""
    ends = THRESHOLDS.get({"vanilla": "ppo"}.get(choice.loss, choice.loss))
    if ends is None:
        return choice
    given = (number(document, f"loss_fn_config.clip_{side}_threshold") for side in ("low", "high"))
    low, high = (end if one is None else one for one, end in zip(given, ends, strict=True))
    return replace(choice, own={**choice.own, "clip_low": 1.0 - low, "clip_high": high - 1.0})


GENERATIONS = (
    generation(
        "tinker-cookbook",
        package=__name__,
        presets={
            "default": {},
            "bypass_ppo": {"loss_fn": "ppo"},
            "bypass_cispo": {"loss_fn": "cispo"},
        },
        read=read,
        metrics=metrics,
        update=UPDATE,
        loss=with_clip,
    ),
)
