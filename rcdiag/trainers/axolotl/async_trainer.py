"""Axolotl's own GRPO trainer: TRL's modes, held between 1 / cap and cap in every one of them.

It runs with `trl.use_data_producer` or `trl.async_prefetch`. Source: axolotl 0.21.0,
axolotl/core/trainers/grpo/async_trainer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcdiag.corrections.bounds import weights_of
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.results import Finding
from rcdiag.trainers.axolotl.loss_in_config import loss_in
from rcdiag.trainers.axolotl.losses import UPDATE
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_text import Inexpressible, Written, rounded
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Trainer, choice, positive
from rcdiag.trainers.trl.emit import off_policy_mask as written_off_policy_mask
from rcdiag.trainers.trl.emit import refuse_others
from rcdiag.trainers.trl.grpo import MODES, off_policy_mask
from rcdiag.trainers.trl.sampler_metrics import metrics_of_responses, quantities

_MODE, _CAP = "vllm_importance_sampling_mode", "vllm_importance_sampling_cap"
_SETTINGS: dict[str, Any] = {
    "async_prefetch": True,
    "use_data_producer": False,
    "use_vllm": True,
    "vllm_importance_sampling_correction": True,
    _MODE: "token_truncate",
    _CAP: 3.0,
    "vllm_importance_sampling_clip_max": None,
    "vllm_importance_sampling_clip_min": None,
    "off_policy_mask_threshold": None,
}
_ONLY_TRL = ("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min")
GUARD = Guard(bound=np.inf, epsilon=0.0)


def read(config: Config) -> Correction:
    """Read the canonical correction; OPSM acts without weights too."""
    rejections = off_policy_mask(config)
    if not (config["use_vllm"] and config["vllm_importance_sampling_correction"]):
        return Correction(rejections=rejections, guard=GUARD)
    mode, cap = choice(config, _MODE, MODES), positive(config, _CAP)
    level, _, outside = mode.partition("_")
    # Above the cap a mask mode sets 0, which the floor then lifts to 1 / cap.
    weighting = Weighting(
        level,  # type: ignore[arg-type]
        cap,
        1.0 / cap,
        "clip" if outside == "truncate" else "floor",
        nan_stays=True,
    )
    return Correction(weighting, rejections=rejections, guard=GUARD)


def ignored(config: Config) -> list[str]:
    """List settings that Axolotl takes and its own trainer does nothing with."""
    return [
        f"{name} has no effect in Axolotl's own trainer, which reads {_CAP}"
        for name in _ONLY_TRL
        if config[name] is not None
    ]


def traps(config: Config) -> list[Finding]:
    """Tell where a mask mode masks nothing."""
    weighting = read(config).weighting
    if weighting is None or weighting.outside != "floor":
        return []
    return [
        Finding(
            slug="mask-lifted-to-floor",
            severity="warning",
            message=f"{config[_MODE]} masks nothing: a weight above {weighting.upper:g} becomes 0 "
            f"and is then lifted to {weighting.lower:.4g}",
            fix="take a truncate mode, or TRL's trainer (no use_data_producer, no async_prefetch)",
            evidence={"cap": weighting.upper, "weight_above_cap": weighting.lower},
        )
    ]


def _is_own(document: Document) -> bool:
    """Tell whether the file runs Axolotl's own trainer."""
    return any(bool(document.find(name)) for name in ("use_data_producer", "async_prefetch"))


def _claim(settings: Config, document: Document) -> Claim | None:
    """Claim a file that runs Axolotl's own trainer."""
    return Claim(1.0) if _is_own(document) else None


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Take settings of vLLM's correction to mean that vLLM samples; null is the default."""
    given = {
        name: value
        for name, value in settings.items()
        if value is not None or _SETTINGS.get(name, ...) is None
    }
    implied = "use_vllm" not in given and any(name.startswith("vllm_") for name in given)
    if not implied:
        return given, []
    finding = Finding(
        slug="use-vllm-implied",
        severity="note",
        message="the file sets a correction of vLLM's log-probs and not trl.use_vllm: it is read "
        "as use_vllm: true, without which nothing is corrected",
        fix="set trl.use_vllm: true",
        evidence={"settings": sorted(given)},
    )
    return {**given, "use_vllm": True}, [finding]


def _findings(document: Mapping[str, Any], settings: Config) -> list[Finding]:
    """Tell where the file runs TRL's trainer and not this one."""
    if _is_own(Document(document)):
        return []
    return [
        Finding(
            slug="axolotl-runs-trl",
            severity="warning",
            message="the file sets neither trl.use_data_producer nor trl.async_prefetch: Axolotl "
            "runs TRL's trainer, with TRL's defaults, and not its own",
            fix="read the file with --trainer trl",
            evidence={},
        )
    ]


def write(correction: Correction) -> Written:
    """Write weights between 1 / cap and cap, and OPSM."""
    refuse_others(correction)
    written = Written({"async_prefetch": True, "use_vllm": True})
    if correction.weighting is None:
        switched_off = Written({"vllm_importance_sampling_correction": False})
        return written | switched_off | written_off_policy_mask(correction)
    weights = weights_of(correction.weighting)
    if weights.level not in ("token", "sequence"):
        raise Inexpressible(f"weights of level {weights.level}")
    if weights.zeroes:
        raise Inexpressible("weights that are zeroed outside of bounds (its mask masks nothing)")
    if weights.window.bounds_nothing or abs(weights.window.lower + weights.window.upper) > 1e-9:
        raise Inexpressible("bounds other than 1 / cap and cap")
    mode = "mask" if weights.floors else "truncate"
    cap = rounded(np.exp(weights.window.upper))
    return (
        written
        | Written({_MODE: f"{weights.level}_{mode}", _CAP: cap})
        | written_off_policy_mask(correction)
    )


GENERATIONS = (
    Trainer(
        name="axolotl-0.21",
        family="axolotl",
        package="rcdiag.trainers.axolotl",
        newest=True,
        settings=_SETTINGS,
        presets={
            "token_truncate": {},
            **{mode: {_MODE: mode} for mode in MODES if mode != "token_truncate"},
        },
        read=read,
        ignored=ignored,
        traps=traps,
        quantities=quantities,
        metrics=metrics_of_responses,
        reads_masked=True,
        update=UPDATE,
        config=ConfigFile(
            path=("trl",),
            places={name: (f"trl.{name}", name) for name in (*_SETTINGS,)},
            claim=_claim,
            loss=loss_in,
            complete=_complete,
            findings=_findings,
            write=write,
            needs=(
                "Axolotl's own trainer needs trl.async_prefetch: true or trl.use_data_producer: "
                "true",
            ),
        ),
    ),
)
