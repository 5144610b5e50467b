"""verl takes these settings and silently ignores them.

Sources: packages verl 0.6.0 to 0.9.1, verl/trainer/ppo/mismatch_helper.py, rollout_corr_helper.py
and core_algos.py.
"""

from __future__ import annotations

from rcdiag.trainers.trainer import Config


def ignored(config: Config) -> list[str]:
    """Return sentences on ignored settings of 0.6.1 and later, one for each."""
    sentences = []
    weights = config["rollout_is"] is not None
    if weights and config["rollout_is_threshold"] is None:
        sentences.append(
            "rollout_is without rollout_is_threshold: verl silently computes no weights"
        )
    if not weights and config["rollout_is_batch_normalize"]:
        sentences.append("rollout_is_batch_normalize has no effect without rollout_is")
    if config["rollout_rs"] is None and config["rollout_rs_threshold"] is not None:
        sentences.append("rollout_rs_threshold has no effect without rollout_rs")
    reinforce = config.get("loss_type") == "reinforce" or config.get("use_policy_gradient")
    if reinforce and not config["bypass_mode"]:
        name = "loss_type" if "loss_type" in config else "use_policy_gradient"
        sentences.append(f"{name} has no effect without bypass_mode")
    if weights and config["bypass_mode"] and not reinforce:
        sentences.append(
            "rollout_is in bypass mode with the PPO loss: the weights are logged and not applied, "
            "the PPO ratio is the correction"
        )
    return sentences


def ignored_before_061(config: Config) -> list[str]:
    """Return sentences on ignored settings of 0.6.0 and its next development version."""
    if config["rollout_is_threshold"] is None:
        return ["rollout_is_threshold is null: verl computes nothing, metrics included"]
    sentences = []
    if not config["rollout_is"]:
        sentences.append("rollout_is is false: weights are logged and not applied to the loss")
    if config["rollout_is_mode"] == "truncate" and config["rollout_is_threshold_lower"]:
        sentences.append(
            "rollout_is_threshold_lower has no effect on truncated weights, only on metrics"
        )
    return sentences
