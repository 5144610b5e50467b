"""verl's config says under `actor` which policy loss it takes, and with which bounds.

Sources: verl 0.9.1, verl/trainer/config/actor/actor.yaml and verl/trainer/ppo/core_algos.py.
"""

from __future__ import annotations

from rcdiag.losses import LOSSES
from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value, word
from rcdiag.trainers.settings_document import Document

_MODE = "actor.policy_loss.loss_mode"
_AGGREGATION = "actor.loss_agg_mode"
_REDUCTIONS = (
    *("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"),
    "seq-mean-token-sum-norm",
)


def loss_in(document: Document) -> LossChoice:
    """Read loss_mode, the clip range, the dual clip, what losses read, and the aggregation.

    `bypass_mode` leaves the loss to the correction.
    """
    modes = {**{name: name for name in LOSSES}, "bypass_mode": ""}
    loss, refused = word(document, _MODE, modes, "a policy loss")
    aggregation, unknown = word(
        document, _AGGREGATION, {name: name for name in _REDUCTIONS}, "an aggregation"
    )
    own = numbers(
        document,
        clip_c="actor.clip_ratio_c",
        tau_pos="actor.tau_pos",
        tau_neg="actor.tau_neg",
        kl_cov_ratio="actor.policy_loss.kl_cov_ratio",
        ppo_kl_coef="actor.policy_loss.ppo_kl_coef",
        clip_cov_ratio="actor.policy_loss.clip_cov_ratio",
        clip_cov_lb="actor.policy_loss.clip_cov_lb",
        clip_cov_ub="actor.policy_loss.clip_cov_ub",
        dro_beta="actor.policy_loss.dro_beta",
    )
    both = number(document, "actor.clip_ratio")
    notes = []
    for ours, name in (("clip_low", "clip_ratio_low"), ("clip_high", "clip_ratio_high")):
        side = value(document, f"actor.{name}", 0.2)  # the default of verl's own config
        clip = both if side is None else number(document, f"actor.{name}")
        if clip is not None:
            own[ours] = clip
        elif both is not None and both != 0.2:
            notes.append(f"actor.clip_ratio has no effect: {name} is 0.2 by default and counts")
    return LossChoice(
        loss=loss,
        aggregation=aggregation or None,
        scale_factor=number(document, "actor.loss_scale_factor"),
        own=own,
        notes=tuple(notes[:1]),
        refused=refused or unknown,
    )
