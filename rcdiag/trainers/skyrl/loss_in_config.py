"""SkyRL's block `trainer.algorithm` says which policy loss it takes, and how it is reduced.

Source: skyrl 0.4.0, skyrl/train/config/config.py, `AlgorithmConfig`.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value, word
from rcdiag.trainers.settings_document import Document

_KINDS = {
    "regular": "vanilla",
    "dual_clip": "vanilla",
    "gspo": "gspo",
    "sapo": "sapo",
    "cispo": "cispo",
    "rollout_is": "icepop_rollout",
    "dppo": "dppo_tv",
    "kl_cov": "kl_cov",
    "clip_cov": "clip_cov",
    "importance_sampling": "importance_weighted",
}
_REDUCTIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
    "prompt_mean": "prompt-mean-token-mean",
}


def loss_in(document: Document) -> LossChoice:
    """Read policy_loss_type with the bounds of that loss, and loss_reduction."""
    loss, refused = word(document, "algorithm.policy_loss_type", _KINDS, "a policy loss")
    reduction, unknown = word(document, "algorithm.loss_reduction", _REDUCTIONS, "a reduction")
    kind = value(document, "algorithm.policy_loss_type", "regular")
    clips = {"clip_low": "algorithm.eps_clip_low", "clip_high": "algorithm.eps_clip_high"}
    if kind == "cispo":
        clips = {"clip_low": "cispo.cispo_eps_clip_low", "clip_high": "cispo.cispo_eps_clip_high"}
        if value(document, "cispo.cispo_anchor") == "rollout":
            loss = "cispo_rollout"
    elif kind == "dppo":
        clips = {"clip_low": "dppo.delta_low", "clip_high": "dppo.delta_high"}
        if value(document, "dppo.dppo_type") == "binary_kl":
            loss = "dppo_kl"
    own: dict[str, float | None] = dict(
        numbers(
            document,
            **clips,
            tau_pos="sapo.tau_pos",
            tau_neg="sapo.tau_neg",
            kl_cov_ratio="kl_cov.kl_cov_frac",
            ppo_kl_coef="kl_cov.ppo_kl_coef",
            clip_cov_ratio="clip_cov.clip_ratio",
            clip_cov_lb="clip_cov.clip_cov_lb",
            clip_cov_ub="clip_cov.clip_cov_ub",
        )
    )
    if kind == "dual_clip":
        bound = number(document, "algorithm.clip_ratio_c")
        own["clip_c"] = 3.0 if bound is None else bound
    return LossChoice(
        loss=loss,
        aggregation=reduction or None,
        scale_factor=number(document, "algorithm.max_seq_len"),
        own=own,
        refused=refused or unknown,
    )
