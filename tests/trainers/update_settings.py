"""Settings of trainers' updates, as stored cases have them, in our names of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.trainers.answers import Settings


def _taken(settings: Settings, **names: str) -> dict[str, Any]:
    """Ours names, each with its value under the trainer's name where it is set."""
    return {ours: settings[theirs] for ours, theirs in names.items() if theirs in settings}


def skyrl(settings: Settings) -> dict[str, Any]:
    """`policy_loss_type`, `loss_reduction` and what the loss reads."""
    reductions = {
        "token_mean": "token-mean",
        "sequence_mean": "seq-mean-token-mean",
        "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
    }
    given: dict[str, Any] = {
        "aggregation": reductions[settings.get("loss_reduction", "token_mean")],
        **_taken(settings, scale_factor="max_seq_len"),
    }
    kind = settings["policy_loss_type"]
    if kind in ("regular", "dual_clip", "gspo", "rollout_is"):
        given |= _taken(settings, clip_low="eps_clip_low", clip_high="eps_clip_high")
    if kind == "dual_clip":
        given["clip_c"] = settings.get("clip_ratio_c", 3.0)
    if kind == "sapo":
        given |= _taken(settings, tau_pos="tau_pos", tau_neg="tau_neg")
    if kind == "cispo":
        names = {"clip_low": "cispo_eps_clip_low", "clip_high": "cispo_eps_clip_high"}
        given |= _taken(settings, **names)
        kind = "cispo_rollout" if settings.get("cispo_anchor") == "rollout" else kind
    if kind == "dppo":
        given |= _taken(settings, clip_low="delta_low", clip_high="delta_high")
        kind = "dppo_kl" if settings.get("dppo_type") == "binary_kl" else "dppo_tv"
    names = {"regular": "vanilla", "dual_clip": "vanilla", "rollout_is": "icepop_rollout"}
    return given | {"loss": names.get(kind, kind)}


def nemo_rl(settings: Settings) -> dict[str, Any]:
    """The switches of one loss."""
    by_token = settings.get("token_level_loss", True)
    given = {"aggregation": "token-mean" if by_token else "seq-mean-token-mean"}
    switches = {
        "sequence_level_importance_ratios": "gspo",
        "use_cispo": "cispo",
        "disable_ppo_ratio": "gpg",
        "force_on_policy_ratio": "on_policy",
    }
    chosen = [loss for switch, loss in switches.items() if settings.get(switch)]
    clips = {"clip_low": "ratio_clip_min", "clip_high": "ratio_clip_max", "clip_c": "ratio_clip_c"}
    return given | {"loss": chosen[0] if chosen else "vanilla"} | _taken(settings, **clips)


def areal(settings: Settings) -> dict[str, Any]:
    """`use_sapo_loss`, or the level of PPO's ratio."""
    level = _taken(settings, importance_sampling_level="importance_sampling_level")
    if settings.get("use_sapo_loss"):
        names = {"tau_pos": "sapo_tau_pos", "tau_neg": "sapo_tau_neg"}
        return {"loss": "sapo"} | level | _taken(settings, **names)
    clip = settings.get("eps_clip", 0.2)
    given = {"clip_low": clip, "clip_high": settings.get("eps_clip_higher", clip)}
    return given | {"loss": "vanilla"} | level | _taken(settings, clip_c="c_clip")


UPDATES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "skyrl": skyrl,
    "nemo-rl": nemo_rl,
    "areal": areal,
}
