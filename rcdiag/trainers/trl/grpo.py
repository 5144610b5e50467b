"""TRL's GRPOTrainer: weights of tokens or sequences, truncated or masked, and OPSM.

Source: trl 1.16.0, trl/trainer/grpo_trainer.py and trl/trainer/grpo_config.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Refused,
    Trainer,
    choice,
    optional_number,
)
from rcdiag.trainers.trl.emit import correction_of_vllm
from rcdiag.trainers.trl.loss_in_config import loss_in
from rcdiag.trainers.trl.losses import UPDATE
from rcdiag.trainers.trl.sampler_metrics import metrics, quantities

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_SETTINGS: dict[str, Any] = {
    "use_vllm": True,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_cap": None,
    "off_policy_mask_threshold": None,
}
# Nothing is clamped before exp; where the sampler has no log-prob (NaN) the ratio is 1.
GUARD = Guard(bound=np.inf, non_finite="nan_equal", epsilon=0.0)


def read(config: Config) -> Correction:
    """Read the canonical correction; OPSM acts without weights too."""
    rejections = off_policy_mask(config)
    if not (config["use_vllm"] and config["vllm_importance_sampling_correction"]):
        return Correction(rejections=rejections, guard=GUARD)
    mode = choice(config, "vllm_importance_sampling_mode", MODES)
    lower, upper = _bounds(config)
    level, _, outside = mode.partition("_")
    if outside == "truncate" and lower is None and upper is None:
        raise Refused(
            "vllm_importance_sampling_clip_max: a truncate mode needs a bound, and both are null",
            "give clip_max, or clip_min",
        )
    return Correction(
        Weighting(
            level,  # type: ignore[arg-type]
            np.inf if upper is None else upper,
            0.0 if lower is None else lower,
            "zero" if outside == "mask" else "clip",
        ),
        rejections=rejections,
        guard=GUARD,
    )


def off_policy_mask(config: Config) -> tuple[Rejection, ...]:
    """Read OPSM: the loss leaves out sequences of negative advantage that lag too far."""
    threshold = optional_number(config, "off_policy_mask_threshold")
    if threshold is None:
        return ()
    return (Rejection("seq_mean_negative_lag", threshold, of_current=True),)


def _bounds(config: Config) -> tuple[float | None, float | None]:
    """Read the bounds as `GRPOConfig.__post_init__` leaves them."""
    lower = optional_number(config, "vllm_importance_sampling_clip_min")
    upper = optional_number(config, "vllm_importance_sampling_clip_max")
    cap = optional_number(config, "vllm_importance_sampling_cap")
    upper = upper if cap is None else cap
    if lower is not None and upper is not None and lower >= upper:
        raise Refused(
            f"vllm_importance_sampling_clip_min: {lower:g} is not below clip_max, {upper:g}",
            "lower it, or raise clip_max",
        )
    return lower, upper


def ignored(config: Config) -> list[str]:
    """List settings that TRL takes and does nothing with."""
    changed = [
        name
        for name in _OF_WEIGHTS
        if config[name] != _SETTINGS[name] and name != "vllm_importance_sampling_correction"
    ]
    if not config["use_vllm"]:
        return [f"{name} has no effect without use_vllm" for name in changed]
    if not config["vllm_importance_sampling_correction"]:
        return [
            f"{name} has no effect with vllm_importance_sampling_correction: false"
            for name in changed
        ]
    cap, upper = (config[f"vllm_importance_sampling_{name}"] for name in ("cap", "clip_max"))
    default = _SETTINGS["vllm_importance_sampling_clip_max"]
    if cap is not None and upper not in (default, cap):
        return ["vllm_importance_sampling_clip_max has no effect: the old cap overwrites it"]
    return []


_OF_WEIGHTS = tuple(name for name in _SETTINGS if name.startswith("vllm_"))


def _claim(settings: Config, document: Document) -> Claim | None:
    """Claim settings by TRL's names, which Axolotl hands to it, or a run of its GRPOTrainer."""
    if any(name in settings for name in (*_OF_WEIGHTS, "off_policy_mask_threshold")):
        return Claim(0.9)
    run = "use_vllm" in settings or document.has("num_generations")
    run = run or document.mentions("trl grpo") > 0 or _is_of_axolotl(document)
    # ms-swift has the same names of a run; its files say what they train.
    return Claim(0.6) if run and not document.has("rlhf_type") else None


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Take settings of vLLM's correction to mean that vLLM samples."""
    if "use_vllm" in settings or not any(name in settings for name in _OF_WEIGHTS):
        return settings, _handed_on(document)
    finding = Finding(
        slug="use-vllm-implied",
        severity="note",
        message="the file sets a correction of vLLM's log-probs and not use_vllm: it is read as "
        "use_vllm: true, without which TRL corrects nothing",
        fix="set use_vllm: true",
        evidence={"settings": [name for name in _OF_WEIGHTS if name in settings]},
    )
    return {**settings, "use_vllm": True}, [finding, *_handed_on(document)]


def _is_of_axolotl(document: Document) -> bool:
    """Tell whether a file is Axolotl's, which hands what it has of GRPO to TRL."""
    return document.has("base_model") and document.find("rl") == "grpo"


def _handed_on(document: Document) -> list[Finding]:
    """Say where the block is Axolotl's, which hands it to TRL."""
    block = document.has("base_model") and isinstance(document.find("trl"), dict)
    if not (block or _is_of_axolotl(document)):
        return []
    return [
        Finding(
            slug="axolotl-runs-trl",
            severity="note",
            message="the file is Axolotl's: without trl.use_data_producer or trl.async_prefetch "
            "it hands this block to TRL, whose defaults hold",
            fix="nothing, if TRL's trainer is meant; its own has other defaults",
            evidence={},
        )
    ]


GENERATIONS = (
    Trainer(
        name="trl-1.16",
        family="trl",
        package="rcdiag.trainers.trl",
        newest=True,
        settings=_SETTINGS,
        presets={
            "sequence_mask": {},
            **{mode: {"vllm_importance_sampling_mode": mode} for mode in MODES[:3]},
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            places={name: (name,) for name in _SETTINGS},
            claim=_claim,
            loss=loss_in,
            complete=_complete,
            write=correction_of_vllm,
            needs=("GRPOConfig: the YAML file of `trl grpo --config`",),
        ),
    ),
)
