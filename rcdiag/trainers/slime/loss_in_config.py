"""slime's flags say which policy loss it takes; miles has the same ones.

Source: slime commit 624b824a8, slime/utils/arguments.py; the estimator chooses the loss.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value
from rcdiag.trainers.settings_document import Document

_OTHERS = ("grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo")


def loss_in(document: Document) -> LossChoice:
    """Read the estimator, both ends of the clip, dual clip, OPSM and the mean over tokens."""
    estimator = value(document, "advantage_estimator")
    losses = {"gspo": "gspo", "cispo": "cispo", **dict.fromkeys(_OTHERS, "vanilla")}
    own = numbers(document, clip_low="eps_clip", clip_high="eps_clip_high", clip_c="eps_clip_c")
    if "clip_low" in own:
        own = {"clip_high": own["clip_low"], **own}
    if value(document, "use_opsm") is True:
        delta = number(document, "opsm_delta")
        own["opsm_delta"] = 1e-4 if delta is None else delta
    by_token = value(document, "calculate_per_token_loss") is True
    return LossChoice(
        loss=losses.get(estimator, "") if isinstance(estimator, str) else "",
        aggregation="token-mean" if by_token else None,
        own=own,
    )
