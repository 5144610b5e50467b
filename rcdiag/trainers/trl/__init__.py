"""TRL, which by default weights the loss by the ratio of its own log-probs to vLLM's."""

from __future__ import annotations

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Config, generation
from rcdiag.trainers.trl.correction import ignored, read, with_vllm
from rcdiag.trainers.trl.losses import UPDATE
from rcdiag.trainers.trl.metrics import metrics


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Infer from settings of vLLM's correction that vLLM samples; note a file of Axolotl."""
    of_vllm = [name for name in settings if name.startswith("vllm_")]
    settings, findings = with_vllm(settings, of_vllm, "use_vllm", "TRL corrects nothing")
    block = isinstance(document.find("trl"), dict) or document.find("rl") == "grpo"
    if document.has("base_model") and block:
        findings.append(
            Finding(
                slug="axolotl-runs-trl",
                severity="note",
                message="this is a file of Axolotl: without trl.use_data_producer or "
                "trl.async_prefetch it passes this block to TRL, whose defaults apply",
                fix="nothing, if TRL's trainer is meant; Axolotl's own has other defaults",
                evidence={},
            )
        )
    return settings, findings


GENERATIONS = (
    generation(
        "trl-1.16",
        package=__name__,
        presets={
            "sequence_mask": {},
            "token_truncate": {"vllm_importance_sampling_mode": "token_truncate"},
            "token_mask": {"vllm_importance_sampling_mode": "token_mask"},
            "sequence_truncate": {"vllm_importance_sampling_mode": "sequence_truncate"},
        },
        read=read,
        ignored=ignored,
        complete=complete,
        metrics=metrics,
        update=UPDATE,
    ),
)
