"""TRL's correction: weights of tokens or sequences, truncated or masked, and OPSM.

Source: trl 1.16.0, trl/trainer/grpo_trainer.py (`_generate_and_score_completions`,
`get_off_policy_mask`) and trl/trainer/grpo_config.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.results import Finding
from rcdiag.trainers.settings_table import Config, Refused, Settings

# Log-ratios are not clamped; if the sampler has no log-prob (NaN), the ratio is 1.
GUARD = Guard(bound=np.inf, non_finite="nan_equal", epsilon=0.0)


def read(settings: Settings) -> Correction:
    """Return the weights and OPSM, which also works without weights."""
    rejections = off_policy_mask(settings)
    if not (settings["use_vllm"] and settings["vllm_importance_sampling_correction"]):
        return Correction(rejections=rejections, guard=GUARD)
    mode = settings["vllm_importance_sampling_mode"]
    lower, upper = _bounds(settings)
    level, _, outside = mode.partition("_")
    if outside == "truncate" and lower is None and upper is None:
        raise Refused(
            "vllm_importance_sampling_clip_max: a truncate mode needs a bound, and both are null",
            "give clip_max, or clip_min",
        )
    return Correction(
        Weighting(
            level,
            np.inf if upper is None else upper,
            0.0 if lower is None else lower,
            "zero" if outside == "mask" else "clip",
        ),
        rejections=rejections,
        guard=GUARD,
    )


def off_policy_mask(settings: Settings) -> tuple[Rejection, ...]:
    """Return OPSM, which removes sequences of negative advantage with a large lag from the loss."""
    threshold = settings["off_policy_mask_threshold"]
    if threshold is None:
        return ()
    return (Rejection("seq_mean_negative_lag", threshold, of_current=True),)


def _bounds(settings: Settings) -> tuple[float | None, float | None]:
    """Return the lower and upper bound of the weights, as set in `GRPOConfig.__post_init__`."""
    lower = settings["vllm_importance_sampling_clip_min"]
    upper = settings["vllm_importance_sampling_clip_max"]
    cap = settings["vllm_importance_sampling_cap"]
    upper = upper if cap is None else cap
    if lower is not None and upper is not None and lower >= upper:
        raise Refused(
            f"vllm_importance_sampling_clip_min: {lower:g} is not below clip_max, {upper:g}",
            "lower it, or raise clip_max",
        )
    return lower, upper


def ignored(config: Config) -> list[str]:
    """Report an upper bound that its old name overrides; 3.0, the default, may not be meant."""
    if not (config["use_vllm"] and config["vllm_importance_sampling_correction"]):
        return []
    cap, upper = (config[f"vllm_importance_sampling_{name}"] for name in ("cap", "clip_max"))
    if cap is None or upper in (3.0, cap):
        return []
    return ["vllm_importance_sampling_clip_max has no effect: the old cap overrides it"]


def with_vllm(
    settings: Config, shown: list[str], key: str, otherwise: str
) -> tuple[Config, list[Finding]]:
    """Infer from settings of vLLM's correction that vLLM samples, and report it.

    `key` is where the file would set it, `shown` the settings that the finding names, `otherwise`
    what the trainer does without vLLM.
    """
    if "use_vllm" in settings or not any(name.startswith("vllm_") for name in settings):
        return settings, []
    finding = Finding(
        slug="use-vllm-implied",
        severity="note",
        message=f"the file sets a correction of vLLM's log-probs but not {key}: it is read as "
        f"use_vllm: true, without which {otherwise}",
        fix=f"set {key}: true",
        evidence={"settings": shown},
    )
    return {**settings, "use_vllm": True}, [finding]
