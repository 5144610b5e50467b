"""A trainer's own YAML is read as it is: which trainer, which generation, which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError, setting
from rcdiag.results import Finding
from rcdiag.trainers import TRAINERS, families, find_trainer
from rcdiag.trainers.trainer import Claim, Config, Trainer


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """The settings of a file, their trainer, and findings on how they were read."""

    trainer: Trainer
    settings: Config
    findings: tuple[Finding, ...]


def read_trainer_config(path: Path, trainer: str | None = None) -> TrainerConfig:
    """Read a whole trainer config, the part of it above the settings, or the settings alone."""
    import yaml

    try:
        text = path.read_text()
        document = yaml.safe_load(text)
        as_written = yaml.load(text, Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RcdiagError(
            f"{path}: cannot be read as YAML ({str(error).splitlines()[0]})",
            hint="give the trainer's config file, or its correction block alone",
        ) from error
    chosen, claim = _chosen(document, path) if trainer is None else (find_trainer(trainer), None)
    block, written = settings_in(document, chosen), settings_in(as_written, chosen)
    if not _is_of_some_trainer(block):
        raise _nothing_in(path)
    settings = {name: value for name, value in block.items() if name in chosen.settings}
    if _is_bare(block) and len(settings) < len(block):
        settings = dict(block)
    findings = [
        *_number_trap(settings, written),
        *chosen.config.findings(document, {**chosen.settings, **settings}),
    ]
    if claim is not None and claim.doubt:
        findings.append(_guessed(chosen, claim.doubt))
    return TrainerConfig(chosen, settings, tuple(findings))


def settings_in(document: Any, trainer: Trainer) -> Mapping[str, Any]:
    """Return the part of a document at the trainer's place, as far down as the document goes."""
    place = document
    for name in trainer.config.path:
        if isinstance(place, dict) and isinstance(place.get(name), dict):
            place = place[name]
    return place if isinstance(place, dict) else {}


def _chosen(document: Any, path: Path) -> tuple[Trainer, Claim]:
    """Choose the generation that claims the settings most surely; the first of equals."""
    claims = [
        (trainer, claim)
        for trainer in TRAINERS.values()
        if (claim := trainer.config.claim(settings_in(document, trainer))) is not None
    ]
    if not claims:
        raise _nothing_in(path)
    return max(claims, key=lambda candidate: candidate[1].certainty)


def _nothing_in(path: Path) -> RcdiagError:
    examples = [
        f"{next(iter(trainer.settings), '')}... in {trainer.words.place} ({family})"
        for family, trainer in families().items()
    ]
    return RcdiagError(
        f"{path}: no settings of a rollout correction in it",
        hint=f"wanted {', or '.join(examples)}",
    )


def _is_of_some_trainer(block: Mapping[str, Any]) -> bool:
    return any(trainer.settings.keys() & block.keys() for trainer in TRAINERS.values())


def _is_bare(block: Mapping[str, Any]) -> bool:
    """Tell whether a block holds nothing but settings of a correction, by their first words."""
    words = {_first_word(name) for trainer in TRAINERS.values() for name in trainer.settings}
    return all(_first_word(str(name)) in words for name in block)


def _first_word(name: str) -> str:
    return name.partition("_")[0]


def _guessed(trainer: Trainer, doubt: str) -> Finding:
    return Finding(
        slug="trainer-guessed",
        severity="note",
        message=f"the settings are read as those of {trainer.name}: {doubt}",
        fix=f"say which it is: {setting('trainer', trainer.name)}",
        evidence={"trainer": trainer.name},
    )


def _number_trap(settings: Config, written: Mapping[str, Any]) -> list[Finding]:
    """Report `0.5_5`, which YAML reads as the number 0.55: underscores group its digits."""
    traps = []
    for name, value in settings.items():
        text = written.get(name)
        if isinstance(value, (int, float)) and isinstance(text, str) and "_" in text:
            traps.append(
                Finding(
                    slug="threshold-read-as-number",
                    severity="error",
                    message=f"{name}: {text} without quotes is the number {value:g} in YAML, and "
                    "that is what the trainer uses",
                    fix=f'write {name}: "{text}"',
                    evidence={"written": text, "read": value},
                )
            )
    return traps
