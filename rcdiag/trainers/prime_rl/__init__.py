"""prime-rl at commit 559b4477 has two losses with a trust region, and logs what they drop."""

from __future__ import annotations

from rcdiag.trainers.prime_rl.correction import facts, read
from rcdiag.trainers.prime_rl.losses import UPDATE
from rcdiag.trainers.prime_rl.metrics import metrics
from rcdiag.trainers.trainer import generation

__all__ = ["GENERATIONS"]

GENERATIONS = (
    generation(
        "prime-rl",
        family="prime-rl",
        package=__name__,
        newest=True,
        presets={"default": {}, "ipo": {"type": "ipo"}},
        read=read,
        rejects_by=("token_rise", "token_fall", "token_tv"),
        facts=facts,
        metrics=metrics,
        update=UPDATE,
    ),
)
