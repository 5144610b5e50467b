"""Unsloth uses TRL's settings with its own loss, and corrects only if it is asked to.

Source: unsloth 2026.8.19, unsloth/models/rl.py and rl_replacements.py; unsloth-zoo commit ce232d6c,
unsloth_zoo/rl_replacements.py, `grpo_compute_loss`. Its statistics are over padded tensors.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import bare_log_ratio, known
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.settings import LossSettings
from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import Settings
from rcdiag.trainers.trainer import Config, generation
from rcdiag.trainers.trl import correction as trl
from rcdiag.trainers.trl import losses as trl_losses
from rcdiag.trainers.trl.losses import UPDATE, clip_shares, clipped_sides, ppo_ratio

__all__ = ["GENERATIONS"]


def read(settings: Settings) -> Correction:
    """Return TRL's weights; OPSM ignores the sampler, and drops nothing at the first update."""
    return replace(trl.read(settings), rejections=())


def ignored(config: Config) -> list[str]:
    """Report what TRL ignores, and OPSM, which depends on the update and not on the sampler."""
    sentences = trl.ignored(config)
    if config["off_policy_mask_threshold"] is not None:
        sentences.append(
            "off_policy_mask_threshold has no effect at the first update: Unsloth compares the "
            "current policy with the old one, and not with the sampler"
        )
    return sentences


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Infer from settings of vLLM's correction that vLLM samples."""
    return trl.with_vllm(settings, sorted(settings), "use_vllm", "Unsloth corrects nothing")


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the two maxima; means and minima would include the padding."""
    weighting, rows = correction.weighting, batch.rows
    if weighting is None or not rows.tokens:
        return {}
    largest = float(rows.max(applied_weights(rows, weighting)).max())
    return {
        "sampling/sampling_logp_difference/max": float(rows.max(known(abs(bare_log_ratio))).max()),
        "sampling/importance_sampling_ratio/max": largest,
    }


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return TRL's losses; clip flags are computed before `delta` bounds the ratio."""
    sides = clipped_sides(batch, ppo_ratio(batch, settings), settings)
    return TokenLosses(trl_losses.vanilla(batch, settings).values, sides)


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return shares of clipped tokens; minimum and maximum are over processes."""
    if "phi" in losses.logged or settings.aggregation == "seq-mean-token-sum":  # vespo, luspo
        return {}
    every = batch.kept.new_ones(batch.kept.shape)
    shares = clip_shares(batch, losses, settings, every)
    for of_processes, mean in (("low_min", "low_mean"), ("high_max", "high_mean")):
        if f"clip_ratio/{mean}" in shares:
            shares[f"clip_ratio/{of_processes}"] = shares[f"clip_ratio/{mean}"]
    return shares


def _on(mode: str) -> Config:
    return {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode}


VANILLA = replace(
    trl_losses.VANILLA, function=vanilla, source="unsloth-zoo commit ce232d6c, grpo_compute_loss"
)
GENERATIONS = (
    generation(
        "unsloth",
        family="unsloth",
        package=__name__,
        newest=True,
        presets={
            "default": {},
            "sequence_mask": _on("sequence_mask"),
            "token_truncate": _on("token_truncate"),
            "token_mask": _on("token_mask"),
            "sequence_truncate": _on("sequence_truncate"),
        },
        read=read,
        ignored=ignored,
        complete=complete,
        metrics=metrics,
        update=replace(UPDATE, losses={**UPDATE.losses, "vanilla": VANILLA}, logged=logged),
    ),
)
