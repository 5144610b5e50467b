"""Axolotl's own GRPO trainer: weights from vLLM's log-probs, with its own bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.axolotl.correction import facts, read, traps
from rcdiag.trainers.axolotl.losses import UPDATE
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import read_tables
from rcdiag.trainers.trainer import Config, generation
from rcdiag.trainers.trl.correction import with_vllm
from rcdiag.trainers.trl.metrics import metrics_of_responses


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Treat null as the default, and infer from settings of vLLM's correction that vLLM samples."""
    defaults = read_tables(__name__)["axolotl-0.21"].defaults()
    given = {
        name: value
        for name, value in settings.items()
        if value is not None or defaults.get(name, ...) is None
    }
    return with_vllm(given, sorted(given), "trl.use_vllm", "nothing is corrected")


def runs_trl(tree: Mapping[str, Any], settings: Config) -> list[Finding]:
    """Report a file with which Axolotl runs TRL's trainer instead of its own."""
    document = Document(tree)
    if any(bool(document.find(name)) for name in ("use_data_producer", "async_prefetch")):
        return []
    return [
        Finding(
            slug="axolotl-runs-trl",
            severity="warning",
            message="the file sets neither trl.use_data_producer nor trl.async_prefetch: Axolotl "
            "then runs TRL's trainer, with TRL's defaults, instead of its own",
            fix="read the file with --trainer trl",
            evidence={},
        )
    ]


GENERATIONS = (
    generation(
        "axolotl-0.21",
        package=__name__,
        presets={
            "token_truncate": {},
            "token_mask": {"vllm_importance_sampling_mode": "token_mask"},
            "sequence_truncate": {"vllm_importance_sampling_mode": "sequence_truncate"},
            "sequence_mask": {"vllm_importance_sampling_mode": "sequence_mask"},
        },
        read=read,
        traps=traps,
        complete=complete,
        file_findings=runs_trl,
        facts=facts,
        metrics=metrics_of_responses,
        update=UPDATE,
    ),
)
