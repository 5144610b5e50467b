"""rLLM at commit 9beb6e0f: one block of settings, which its backends read differently."""

from __future__ import annotations

from rcdiag.results import Finding
from rcdiag.trainers.rllm import correction, losses, metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Config, generation

_BYPASS: Config = {"bypass_mode": True}
_TOKEN: Config = {"tis_mode": "token"}
_SEQUENCE: Config = {"tis_mode": "sequence"}
_PRESETS: dict[str, Config] = {
    "default": {},
    "token_tis": _TOKEN,
    "sequence_tis": _SEQUENCE,
    "bypass_ppo": _BYPASS,
}


def is_run(document: Document) -> bool:
    """Tell whether a file has rLLM's own block, even without settings of the correction."""
    named = document.mentions("rllm/backend=") > 0  # a Hydra choice, not a setting
    return named or document.has("rllm.algorithm", "rllm.backend")


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Add the backend that a script chooses through Hydra, if it has no correction."""
    tinker = document.mentions("rllm/backend=tinker") > 0
    return ({**settings, "backend": "tinker"} if tinker else settings), []


GENERATIONS = (
    generation(
        "rllm-fireworks",
        package=__name__,
        presets=_PRESETS,
        read=correction.on_fireworks,
        metrics=metrics.on_fireworks,
        update=losses.FIREWORKS,
        whole=is_run,
        complete=complete,
        facts=lambda correction, facts: {"backend": "fireworks"},
    ),
    generation(
        "rllm-verl",
        package=__name__,
        presets={**_PRESETS, "token_icepop": {**_TOKEN, "tis_cap": "0.5_5.0"}},
        read=correction.on_verl,
        metrics=metrics.on_verl,
        update=losses.VERL,
        whole=is_run,
        complete=complete,
        facts=lambda correction, facts: {"backend": "verl"},
    ),
)
