"""prime-rl's losses with a trust region, and what they log of the tokens that they drop."""

from __future__ import annotations

from typing import Any

from rcdiag.trainers.prime_rl.correction import facts, read, write_type
from rcdiag.trainers.prime_rl.losses import UPDATE, UPDATE_OF_AUGUST
from rcdiag.trainers.prime_rl.metrics import metrics
from rcdiag.trainers.trainer import generation

__all__ = ["GENERATIONS"]

_SHARED: dict[str, Any] = {"package": __name__, "read": read}
_SHARED |= {"facts": facts, "metrics": metrics}
GENERATIONS = (
    generation(
        "prime-rl-20260821",
        presets={"default": {}, "ipo": {"type": "ipo"}},
        rejects_by=("token_rise", "token_fall", "token_tv"),
        update=UPDATE_OF_AUGUST,
        **_SHARED,
    ),
    generation(
        "prime-rl-20260918",
        presets={"default": {}, "ipo": {"type": "ipo"}, "loss_icepop": {"type": "icepop"}},
        rejects_by=("token_tv",),
        update=UPDATE,
        write={"type": write_type},
        **_SHARED,
    ),
)
