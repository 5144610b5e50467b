"""ROLL at commit 8eb27cc2: weights by four kinds of ratios, filters by ratios and probabilities."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.roll.correction import (
    DIFFERENCES,
    LEVELS,
    facts,
    file_findings,
    ignored,
    read,
)
from rcdiag.trainers.roll.losses import UPDATE
from rcdiag.trainers.roll.metrics import metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Config, generation


def ppo(document: Document, choice: LossChoice) -> LossChoice:
    """Add PPO's clip, its dual clip and the level of its ratio.

    The bound of the dual clip is 1 + 2 pg_clip, whatever the range of the clip.
    """
    loss, clip = choice.loss, number(document, "pg_clip")
    level = value(document, "importance_sampling")
    if not loss and level is not None:
        loss = "gspo" if level == "seq" else "vanilla"
    own: dict[str, Any] = {}
    if value(document, "use_pg_clip_range") is True:
        for ours, name in (("clip_low", "pg_clip_low"), ("clip_high", "pg_clip_high")):
            end = number(document, name)
            own[ours] = 0.2 if end is None else end
    elif clip is not None:
        own = {"clip_low": clip, "clip_high": clip}
    if value(document, "dual_clip_loss") is True:
        own["clip_c"] = 1.0 + 2.0 * (0.2 if clip is None else clip)
    return replace(choice, loss=loss, own={**own, **choice.own})


def _filter(level: str, **changed: Any) -> dict[str, Any]:
    return {"filters": [{"enabled": True, "agg_type": level, **changed}]}


_PRESETS: dict[str, Config] = {
    "default": {},
    **{
        f"is_weight_{level}": {
            "is_weight.enabled": True,
            **({} if level == "token" else {"is_weight.weight_type": level}),
        }
        for level in LEVELS
    },
    **{f"filter_ratio_{level}": _filter(level) for level in LEVELS},
    **{
        f"filter_diff_{level}": _filter(level, ratio_enabled=False, diff_enabled=True)
        for level in LEVELS
    },
}
GENERATIONS = (
    generation(
        "roll",
        package=__name__,
        presets=_PRESETS,
        read=read,
        rejects_by=tuple(DIFFERENCES.values()),
        ignored=ignored,
        file_findings=file_findings,
        loss=ppo,
        facts=facts,
        metrics=metrics,
        update=UPDATE,
    ),
)
