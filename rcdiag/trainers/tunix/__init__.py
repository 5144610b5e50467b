"""Tunix at commit c7d8950f: truncated token weights, or the sampler as old policy."""

from __future__ import annotations

from collections.abc import Mapping

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import read_tables
from rcdiag.trainers.trainer import Config, generation
from rcdiag.trainers.tunix.correction import read
from rcdiag.trainers.tunix.losses import UPDATE
from rcdiag.trainers.tunix.metrics import metrics


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read `grpo_config`, the block of plain GRPO, which has the same settings.

    `training_mode` chooses between the two (tunix/cli/grpo_main.py).
    """
    block = document.find("grpo_config")
    is_agentic = document.has("agentic_grpo_config") and document.find("training_mode") != "grpo"
    if not isinstance(block, Mapping) or is_agentic:
        return settings, []
    names = read_tables(__name__)["tunix"].settings
    return {name: block[name] for name in names if name in block}, []


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
        whole=lambda document: document.has("agentic_grpo_config", "grpo_config"),
        complete=complete,
    ),
)
