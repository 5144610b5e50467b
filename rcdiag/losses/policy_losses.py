"""verl's policy losses by their `loss_mode`; all that any generation has."""

from __future__ import annotations

from rcdiag.losses import clipped, divergence, linear, selected
from rcdiag.losses.batch import PolicyLoss

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "vanilla": clipped.vanilla,
    "gspo": clipped.gspo,
    "sapo": clipped.sapo,
    "gpg": linear.gpg,
    "geo_mean": clipped.geo_mean,
    "cispo": clipped.cispo,
    "dppo_tv": divergence.dppo_tv,
    "dppo_kl": divergence.dppo_kl,
    "kl_cov": selected.kl_cov,
    "clip_cov": selected.clip_cov,
    "dro": linear.dro,
    "reinforce": linear.reinforce,
}
