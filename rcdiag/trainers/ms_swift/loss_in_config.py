"""ms-swift's flags say by `loss_type` which policy loss and which mean it takes.

Source: ms-swift 4.6.0, swift/rlhf_trainers/args_mixin.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, value
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trl.loss_in_config import LOSS_TYPES, of_loss_type

_TYPES = {
    **{name: pair for name, pair in LOSS_TYPES.items() if name not in ("luspo", "vespo")},
    "fipo": ("fipo", "token-mean"),
    "real": ("real", "prompt-mean-token-sum"),
}
_SAME = (
    *("delta", "tau_pos", "tau_neg", "real_tau", "fipo_decay_rate", "fipo_clip_range"),
    "fipo_safety_threshold",
)


def loss_in(document: Document) -> LossChoice:
    """Read TRL's settings under ms-swift's names, and those of FIPO and REAL."""
    choice = of_loss_type(document, _TYPES, {name: name for name in _SAME})
    own = dict(choice.own)
    for name in ("fipo_clip_range", "fipo_safety_threshold"):
        if value(document, name, 0) is None:  # null turns it off
            own[name] = None
    if (high_only := value(document, "fipo_clip_high_only")) is not None:
        own["fipo_clip_high_only"] = high_only
    by_kept = value(document, "loss_type") == "bnpo"
    return replace(choice, own=own, denominator="kept" if by_kept else None)
