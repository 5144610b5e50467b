"""SkyRL as a trainer of rcdiag: its settings wherever they stand in its config, and its traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.skyrl.correction import (
    LOSSES,
    PRESETS,
    SETTINGS,
    outlier_mask,
    read,
    token_mask,
)
from rcdiag.trainers.skyrl.emit import off_policy_correction
from rcdiag.trainers.skyrl.loss_in_config import loss_in
from rcdiag.trainers.skyrl.losses import UPDATE
from rcdiag.trainers.skyrl.metrics import metrics, quantities
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Trainer

PATH = ("trainer", "algorithm", "off_policy_correction")
_OF_LOSS = {
    "cispo_anchor": "cispo",
    "cispo_eps_clip_low": "cispo",
    "cispo_eps_clip_high": "cispo",
    "dppo_type": "dppo",
    "delta_low": "dppo",
    "delta_high": "dppo",
}
_OF_ALGORITHM = (
    *("use_tis", "tis_imp_ratio_cap", "policy_loss_type", "eps_clip_low", "eps_clip_high"),
)
# Names that no other trainer has, by which the block alone is known.
_OWN = tuple(
    name for name in SETTINGS if name.startswith(("tis_ratio", "sequence_mask", "outlier"))
)


def _place(name: str) -> tuple[str, ...]:
    """Return the dotted names of a setting, as in a whole config first."""
    if name in _OF_ALGORITHM:
        short = f"algorithm.{name}"
    elif name in _OF_LOSS:
        short = f"{_OF_LOSS[name]}.{name}"
        return f"trainer.algorithm.{short}", short, name
    else:
        short = f"off_policy_correction.{name}"
        return f"trainer.algorithm.{short}", short, name
    return f"trainer.{short}", short, name


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim a config with SkyRL's block, or with its two halves, or the block alone."""
    whole = document.has("trainer.algorithm") and document.has("generator")
    own = document.has("off_policy_correction", "trainer.algorithm.policy_loss_type")
    if own or whole or any(name in config for name in _OWN):
        return Claim(0.98)
    return None


def ignored(config: Config) -> list[str]:
    """List settings that SkyRL takes and does nothing with."""
    sentences = []
    bounds = [f"token_mask_is_threshold_{side}" for side in ("low", "high")]
    given = [name for name in bounds if config[name] is not None]
    if len(given) == 1:
        sentences.append(f"{given[0]} has no effect alone: the token mask needs both bounds")
    if config["policy_loss_type"] not in LOSSES and (outlier_mask(config) or token_mask(config)):
        sentences.append(f"{config['policy_loss_type']} leaves the masks of tokens out")
    return sentences


def traps(config: Config) -> list[Finding]:
    """Report weights that turn the update around."""
    cap = config["tis_imp_ratio_cap"]
    if not config["use_tis"] or not isinstance(cap, (int, float)) or cap > 0:
        return []
    return [
        Finding(
            slug="use-tis-turns-update",
            severity="error",
            message=f"use_tis takes tis_imp_ratio_cap for its cap, which is {cap:g}: every weight "
            f"is {cap:g}",
            fix="set tis_ratio_type: token with token_tis_ratio_clip_high, and drop use_tis",
            evidence={"tis_imp_ratio_cap": cap},
        )
    ]


def _findings(document: Mapping[str, Any], config: Config) -> list[Finding]:
    """Report masks for which the sampler hands out no log-probs."""
    sampling = document.get("generator", {})
    sampling = sampling.get("sampling_params", {}) if isinstance(sampling, Mapping) else {}
    if not isinstance(sampling, Mapping) or sampling.get("logprobs", 1) is not None:
        return []
    asks = config["tis_ratio_type"] is not None or config["sequence_mask_metric"] is not None
    if asks or config["use_tis"] or not (outlier_mask(config) or token_mask(config)):
        return []
    return [
        Finding(
            slug="masks-without-log-probs",
            severity="error",
            message="generator.sampling_params.logprobs is null, so that the masks of this config "
            "do nothing",
            fix="set generator.sampling_params.logprobs: 1",
        )
    ]


GENERATIONS = (
    Trainer(
        name="skyrl-0.4",
        family="skyrl",
        package="rcdiag.trainers.skyrl",
        newest=True,
        settings=SETTINGS,
        presets=PRESETS,
        read=read,
        ignored=ignored,
        traps=traps,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            path=PATH,
            places={name: _place(name) for name in SETTINGS},
            claim=_claim,
            loss=loss_in,
            findings=_findings,
            write=off_policy_correction,
            needs=("needs generator.sampling_params.logprobs: 1, which is the default",),
            hydra=True,
        ),
    ),
)
