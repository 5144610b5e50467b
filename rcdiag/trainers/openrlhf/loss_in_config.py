"""OpenRLHF's flags `--actor.*` say which policy loss it takes.

Source: openrlhf 0.11.2, openrlhf/cli/train_ppo_ray.py.
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value, word
from rcdiag.trainers.settings_document import Document

_REDUCTIONS = {name: name for name in ("token-mean", "seq-mean-token-mean")}


def loss_in(document: Document) -> LossChoice:
    """Read policy_loss_type, eps_clip or both ends of it, dual_clip and loss_agg_mode."""
    kinds = {"ppo": "vanilla", "gspo": "gspo"}
    loss, refused = word(document, "actor.policy_loss_type", kinds, "a policy loss")
    aggregation, unknown = word(document, "actor.loss_agg_mode", _REDUCTIONS, "an aggregation")
    own = numbers(document, clip_c="actor.dual_clip")
    clip = number(document, "actor.eps_clip")
    ends = value(document, "actor.eps_clip_low_high")
    if ends is not None:
        if not (isinstance(ends, (list, tuple)) and len(ends) == 2):
            raise RcdiagError(
                f"actor.eps_clip_low_high: wanted two numbers, got {ends!r}",
                "for example --actor.eps_clip_low_high 0.2 0.28",
            )
        own |= {"clip_low": float(ends[0]), "clip_high": float(ends[1])}
    elif clip is not None:
        own |= {"clip_low": clip, "clip_high": clip}
    return LossChoice(
        loss=loss, aggregation=aggregation or None, own=own, refused=refused or unknown
    )
