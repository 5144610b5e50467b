"""NeMo-RL as a trainer of rcdiag: its settings wherever they stand in its config, and its traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.nemo_rl.correction import PRESETS, SETTINGS, read
from rcdiag.trainers.nemo_rl.emit import clipped_pg_loss
from rcdiag.trainers.nemo_rl.loss_in_config import loss_in
from rcdiag.trainers.nemo_rl.losses import UPDATE
from rcdiag.trainers.nemo_rl.metrics import metrics, quantities
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Trainer

FILTER = "seq_logprob_error_threshold"
_OF_GRPO = (f"grpo.{FILTER}", f"ppo.{FILTER}", FILTER)


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim a config with NeMo-RL's loss, or a part of it with names that it alone has."""
    names = ("ratio_clip_min", *(name for name in SETTINGS if name != FILTER))
    in_loss = document.has(*(f"loss_fn.{name}" for name in names))
    alone = [name for name in config if name.startswith(("truncated_importance", "seq_logprob"))]
    if in_loss or alone or (document.has("loss_fn") and document.has("grpo")):
        return Claim(0.99)
    return None


def ignored(config: Config) -> list[str]:
    """List settings that NeMo-RL takes and does nothing with."""
    low = "truncated_importance_sampling_ratio_min"
    if config[low] is not None and config["truncated_importance_sampling_type"] is None:
        return [f"{low} has no effect without truncated_importance_sampling_type"]
    return []


def traps(config: Config) -> list[Finding]:
    """Report old log-probs that are not computed."""
    if not config["force_on_policy_ratio"] or config[FILTER] is not None:
        return []
    return [
        Finding(
            slug="old-log-probs-are-zero",
            severity="warning",
            message="force_on_policy_ratio: NeMo-RL computes no old log-probs; prev_logprobs of "
            "its dumps are 0, and so are its logged errors of sequences",
            fix="do not score prev_logprobs of such a dump: score it with the checkpoint",
        )
    ]


def _findings(document: Mapping[str, Any], config: Config) -> list[Finding]:
    """Report asynchronous training without weights, on which the trainer stops."""
    grpo = document.get("grpo")
    options = grpo.get("async_grpo") if isinstance(grpo, Mapping) else None
    on = isinstance(options, Mapping) and bool(options.get("enabled"))
    if not on or config["use_importance_sampling_correction"]:
        return []
    return [
        Finding(
            slug="async-without-weights",
            severity="error",
            message="grpo.async_grpo.enabled is true and use_importance_sampling_correction is "
            "not: NeMo-RL stops",
            fix="set loss_fn.use_importance_sampling_correction: true",
        )
    ]


GENERATIONS = (
    Trainer(
        name="nemo-rl",
        family="nemo-rl",
        package="rcdiag.trainers.nemo_rl",
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
            path=("loss_fn",),
            places={
                **{name: (f"loss_fn.{name}", name) for name in SETTINGS},
                FILTER: _OF_GRPO,
            },
            beside=("reference_policy_kl_penalty",),
            claim=_claim,
            loss=loss_in,
            findings=_findings,
            write=clipped_pg_loss,
            hydra=True,
        ),
    ),
)
