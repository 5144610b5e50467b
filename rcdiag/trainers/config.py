"""A trainer's own YAML, taken as it is: which trainer, which generation, which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rcdiag.errors import RcdiagError
from rcdiag.results import Finding
from rcdiag.trainers import NEWEST_VERL, TRAINERS, find_trainer
from rcdiag.trainers.trainer import Config, Trainer
from rcdiag.trainers.verl.k_rejection import OPTIONS
from rcdiag.trainers.verl.whole_config import whole_config_findings

OLD_STYLE = {
    "rollout_is_level",
    "rollout_is_mode",
    "rollout_is_veto_threshold",
    "rollout_is_threshold_lower",
}
RATIO_STYLE = {"rollout_rs_threshold_lower", "rollout_token_veto_threshold", "use_policy_gradient"}
RATIO_LEVELS = ("token", "sequence", "geometric")


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings found in a file, and what has to be said about how they were read."""

    trainer: Trainer
    settings: Config
    findings: tuple[Finding, ...]


def read_trainer_config(path: Path, trainer: str | None = None) -> TrainerConfig:
    """A whole trainer config, its `algorithm` block, or the bare correction block."""
    try:
        text = path.read_text()
        document = yaml.safe_load(text)
        as_written = yaml.load(text, Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RcdiagError(
            f"{path}: cannot be read as YAML ({str(error).splitlines()[0]})",
            hint="give the trainer's config file, or its correction block alone",
        ) from error
    block, written = _block(document, path), _block(as_written, path)
    guessed, reason = _generation(block)
    chosen = find_trainer(trainer or guessed)
    # An `algorithm` block of old style holds much else.
    settings = {name: value for name, value in block.items() if name in chosen.settings}
    if _is_bare(block) and len(settings) < len(block):
        settings = dict(block)
    findings = [
        *_number_trap(settings, written),
        *whole_config_findings(document, chosen.name, {**chosen.settings, **settings}),
    ]
    if trainer is None and reason:
        findings.append(_guessed(chosen, reason))
    return TrainerConfig(chosen, settings, tuple(findings))


def _all_settings() -> set[str]:
    return {name for trainer in TRAINERS.values() for name in trainer.settings}


def _block(document: Any, path: Path) -> Mapping[str, Any]:
    """The part of a document that speaks about corrections."""
    place = document
    for name in ("algorithm", "rollout_correction"):
        if isinstance(place, dict) and isinstance(place.get(name), dict):
            place = place[name]
    if isinstance(place, dict) and _all_settings() & set(place):
        return place
    raise RcdiagError(
        f"{path}: no settings of a rollout correction in it",
        hint="wanted algorithm.rollout_correction (verl), algorithm.rollout_is... (verl 0.6.0), "
        "or use_tis... (slime)",
    )


def _is_bare(block: Mapping[str, Any]) -> bool:
    """Nothing but a correction's settings, as far as names tell."""
    return all(
        name.startswith(("rollout_", "use_", "tis_", "rs_", "bypass", "loss")) for name in block
    )


def _generation(block: Mapping[str, Any]) -> tuple[str, str]:
    """The generation by its keys, and why it is a guess where it is one."""
    names = set(block)
    if names & set(TRAINERS["slime"].settings):
        return "slime", ""
    if names & OLD_STYLE:
        return "verl-0.6.0", "verl-20251027 has the same settings, and rejects through the mask"
    if names & RATIO_STYLE or block.get("rollout_rs") in RATIO_LEVELS:
        return _ratio_generation(names)
    options = str(block.get("rollout_rs") or "").split(",")
    if isinstance(block.get("rollout_is_threshold"), str):
        return NEWEST_VERL, "verl-0.8.0 has the same settings"
    if any(option.strip() in OPTIONS for option in options):
        return NEWEST_VERL, "verl-0.7.1 and 0.8.0 have the same settings"
    return NEWEST_VERL, "generations from 0.6.1 on have these settings"


def _ratio_generation(names: set[str]) -> tuple[str, str]:
    if "use_policy_gradient" in names:
        return "verl-0.6.1", "verl-20251203 has the same settings"
    if "loss_type" in names:
        return "verl-0.7.0", ""
    return "verl-0.7.0", "verl-0.6.1 has these settings too"


def _guessed(trainer: Trainer, reason: str) -> Finding:
    return Finding(
        slug="trainer-guessed",
        severity="note",
        message=f"the settings are read as those of {trainer.name}: {reason}",
        fix=f"say which it is: --trainer {trainer.name}",
        evidence={"trainer": trainer.name},
    )


def _number_trap(settings: Config, written: Mapping[str, Any]) -> list[Finding]:
    """YAML lets digits be grouped by underscores: `0.5_5` is the number 0.55."""
    found = []
    for name, value in settings.items():
        text = written.get(name)
        if isinstance(value, (int, float)) and isinstance(text, str) and "_" in text:
            found.append(
                Finding(
                    slug="threshold-read-as-number",
                    severity="error",
                    message=f"{name}: {text} without quotes is the number {value:g} in YAML, and "
                    "that is what the trainer uses",
                    fix=f'write {name}: "{text}"',
                    evidence={"written": text, "read": value},
                )
            )
    return found
