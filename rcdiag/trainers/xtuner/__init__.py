"""XTuner at commit b934f462: rollout importance sampling after an older helper of verl."""

from __future__ import annotations

from rcdiag.trainers.trainer import generation
from rcdiag.trainers.xtuner.correction import facts, read
from rcdiag.trainers.xtuner.losses import UPDATE
from rcdiag.trainers.xtuner.metrics import metrics

_BOUNDS = {"rollout_is_threshold": [5.0, 0.5]}
GENERATIONS = (
    generation(
        "xtuner",
        package=__name__,
        # `token_both` is from XTuner's example configurations.
        presets={
            "default": {},
            "token_both": {
                **_BOUNDS,
                "rollout_is_mode": "both",
                "rollout_is_veto_threshold": [20.0, 0.0],
            },
            "token_truncate": _BOUNDS,
            "sequence_mask": {
                "rollout_is_level": "sequence",
                "rollout_is_mode": "mask",
                **_BOUNDS,
            },
        },
        read=read,
        metrics=metrics,
        update=UPDATE,
        whole=lambda document: document.has("loss_cfg.policy_loss_cfg"),
        facts=facts,
    ),
)
