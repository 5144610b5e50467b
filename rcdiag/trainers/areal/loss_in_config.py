"""AReaL's block `actor` says which policy loss it takes.

Source: areal 1.0.4, areal/api/cli_args.py, `PPOActorConfig`.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value
from rcdiag.trainers.settings_document import Document


def loss_in(document: Document) -> LossChoice:
    """Read eps_clip, its higher end, c_clip, SAPO's switch and temperatures, and the level."""
    own = numbers(
        document,
        clip_low="actor.eps_clip",
        clip_c="actor.c_clip",
        tau_pos="actor.sapo_tau_pos",
        tau_neg="actor.sapo_tau_neg",
    )
    high = number(document, "actor.eps_clip_higher")
    if high is not None or "clip_low" in own:
        own["clip_high"] = own["clip_low"] if high is None else high
    level = value(document, "actor.importance_sampling_level")
    sapo = value(document, "actor.use_sapo_loss")
    return LossChoice(
        loss="" if sapo is None else "sapo" if sapo else "vanilla",
        own={**own, **({} if level is None else {"importance_sampling_level": level})},
    )
