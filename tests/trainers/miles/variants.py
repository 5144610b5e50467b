"""Settings of miles whose numbers are stored: flags, and keys of the helper's YAML."""

from __future__ import annotations

from typing import Any

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"


def _helper(**settings: Any) -> dict[str, Any]:
    return {"use_tis": True, "custom_tis_function_path": MIS, **settings}


def _icepop(**settings: Any) -> dict[str, Any]:
    return {"use_tis": True, "custom_tis_function_path": ICEPOP, **settings}


PER_TOKEN = {"calculate_per_token_loss": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "default per token": PER_TOKEN,
    "tis": {"use_tis": True},
    "tis per token": {"use_tis": True, **PER_TOKEN},
    "tis on both sides": {"use_tis": True, "tis_clip": 1.8, "tis_clip_low": 0.3},
    "tis narrow": {"use_tis": True, "tis_clip": 1.05, "tis_clip_low": 0.95},
    "icepop": _icepop(),
    "icepop narrow": _icepop(tis_clip=1.2, tis_clip_low=0.8),
    "icepop per token": _icepop(tis_clip=1.2, tis_clip_low=0.8, **PER_TOKEN),
    "helper": _helper(),
    "helper per token": _helper(**PER_TOKEN),
    "helper clip": _helper(tis_mode="clip"),
    "helper mask": _helper(tis_mode="mask", use_rs=False),
    "helper by sequence": _helper(tis_level="sequence", rs_level="sequence", rs_veto_threshold=0.1),
    "helper geometric": _helper(tis_level="geometric", tis_batch_normalize=False),
    "helper rejects geometric": _helper(
        rs_level="geometric", rs_lower_bound=0.7, rs_upper_bound=1.3
    ),
    "helper without rejection": _helper(use_rs=False, tis_batch_normalize=False),
    "helper veto per token": _helper(rs_veto_threshold=0.2, **PER_TOKEN),
    "metrics alone": {
        "get_mismatch_metrics": True,
        "custom_tis_function_path": MIS,
        "use_tis": False,
    },
}
UPDATES: dict[str, dict[str, Any]] = {
    f"{estimator}{said}": {"advantage_estimator": estimator, **config}
    for estimator in ("grpo", "gspo")
    for said, config in (
        ("", {}),
        (", tis", {"use_tis": True, "tis_clip": 1.1, "tis_clip_low": 0.8}),
        (", icepop per token", _icepop(tis_clip=1.2, tis_clip_low=0.8, **PER_TOKEN)),
        (", helper", _helper()),
        (", helper per token", _helper(**PER_TOKEN)),
        (", opsm", {"use_opsm": True, "opsm_delta": 0.01}),
        (", rollout as old", {"use_rollout_logprobs": True}),
    )
    # rcdiag's bypass mode has only PPO.
    if (estimator, said) != ("gspo", ", rollout as old")
}
# Metrics of the PPO ratio and the loss, which a replay logs.
OF_THE_UPDATE = (*("loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl", "ess_ratio", "ois"),)
