"""Tunix at commit c7d8950f: truncated token weights, or the sampler as old policy."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from rcdiag.results import Finding
from rcdiag.trainers.loss_choice import LossChoice
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import read_tables
from rcdiag.trainers.trainer import Config, generation
from rcdiag.trainers.tunix.correction import read
from rcdiag.trainers.tunix.losses import UPDATE
from rcdiag.trainers.tunix.metrics import metrics


def is_ppo(document: Document) -> bool:
    """Tell whether a file is one of PPO, whose learner has no setting of a correction."""
    return document.has("ppo_config") and not document.has("agentic_grpo_config", "grpo_config")


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read `grpo_config`, the block of plain GRPO, which has the same settings.

    `training_mode` chooses between the two (tunix/cli/grpo_main.py). PPO scores the samples with
    the trainer, always (tunix/rl/ppo/ppo_learner.py).
    """
    if is_ppo(document):
        return {"use_rollout_logps": False}, []
    block = document.find("grpo_config")
    is_agentic = document.has("agentic_grpo_config") and document.find("training_mode") != "grpo"
    if not isinstance(block, Mapping) or is_agentic:
        return settings, []
    names = read_tables(__name__)["tunix"].settings
    return {name: block[name] for name in names if name in block}, []


def with_ppo(document: Document, choice: LossChoice) -> LossChoice:
    """Take PPO's mean over tokens: its loss does not read `loss_agg_mode`."""
    return replace(choice, aggregation="token-mean") if is_ppo(document) else choice


GENERATIONS = (
    generation(
        "tunix",
        package=__name__,
        presets={
            "default": {},
            "token_tis": {"sampler_is": "token"},
            "recomputed": {"use_rollout_logps": False},
        },
        read=read,
        metrics=metrics,
        update=UPDATE,
        whole=lambda document: document.has("agentic_grpo_config", "grpo_config", "ppo_config"),
        complete=complete,
        loss=with_ppo,
    ),
)
