"""open-instruct at commit e6c3044a: a correction by one ratio, clamped and masked."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.results import Finding
from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.open_instruct.correction import SWITCHES, facts, read
from rcdiag.trainers.open_instruct.losses import UPDATE
from rcdiag.trainers.open_instruct.metrics import metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Config, generation


def turned_off(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read a flag `--no_NAME` as the switch NAME being off."""
    off = {name: False for name in SWITCHES if document.find(f"no_{name}") is True}
    return {**settings, **off}, []


def denominator(document: Document, choice: LossChoice) -> LossChoice:
    """Add loss_denominator if it is a number and not the word `token`."""
    if value(document, "loss_denominator", "token") == "token":
        return choice
    constant = number(document, "loss_denominator")
    named = None if constant is None else "constant"
    return replace(choice, denominator=named, constant=constant)


GENERATIONS = (
    generation(
        "open-instruct",
        package=__name__,
        presets={
            "default": {},
            "sequence_level": {"rho_mask_sequence_level": True},
            "off": {"use_rho_correction": False},
            "vllm_logprobs": {"use_rho_correction": False, "use_vllm_logprobs": True},
        },
        read=read,
        complete=turned_off,
        loss=denominator,
        facts=facts,
        metrics=metrics,
        update=UPDATE,
    ),
)
