"""prime-rl's losses with a trust region, and their metrics of dropped tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

from rcdiag.trainers.prime_rl.correction import facts, read
from rcdiag.trainers.prime_rl.losses import UPDATE, UPDATE_OF_AUGUST
from rcdiag.trainers.prime_rl.metrics import metrics
from rcdiag.trainers.trainer import generation

_SHARED: dict[str, Any] = {"package": __name__, "read": read, "metrics": metrics}
GENERATIONS = (
    generation(
        "prime-rl-20260821",
        presets={"default": {}, "ipo": {"type": "ipo"}},
        rejects_by=("token_rise", "token_fall", "token_tv"),
        facts=partial(facts, has_dppo=True),
        update=UPDATE_OF_AUGUST,
        **_SHARED,
    ),
    generation(
        "prime-rl-20260918",
        presets={"default": {}, "ipo": {"type": "ipo"}, "loss_icepop": {"type": "icepop"}},
        rejects_by=("token_tv",),
        update=UPDATE,
        facts=facts,
        **_SHARED,
    ),
)
