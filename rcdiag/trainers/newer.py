"""Findings on settings that a trainer did not have at the version that rcdiag knows.

Trainers change every week. What rcdiag has not read is newer than what it knows, or misspelt: it
says which, up to which version and date it knows the trainer, what it assumes, and goes on.
"""

from __future__ import annotations

from typing import Any

from rcdiag.errors import nearest
from rcdiag.formats import yaml_value
from rcdiag.results import Finding
from rcdiag.trainers import TRAINERS, families
from rcdiag.trainers.trainer import Config, Refused, Trainer, UnknownValue


def meant(trainer: Trainer, config: Config, name: str, value: Any) -> str | None:
    """Return the setting that was probably meant: one spelt alike, else one with an effect."""
    known = {key: one for key, one in config.items() if key in trainer.settings}
    settings = {**trainer.settings, **known}

    def acts(key: str) -> bool:
        """Tell whether another setting with this value would change the correction."""
        try:
            return trainer.read({**settings, key: value}) != trainer.read(settings)
        except Refused:
            return False

    near = nearest(name, trainer.settings, likeness=0.8)
    return near or nearest(name, filter(acts, trainer.settings))


def newer_setting(
    trainer: Trainer, name: str, value: Any, near: str | None, config: Config, where: str
) -> Finding:
    """Say that a file sets what is no setting of a generation, and that it is left out.

    `near` is the setting that may be meant, `config` what else the file sets.
    """
    elsewhere = [
        one.name
        for one in TRAINERS.values()
        if one.family == trainer.family and name in one.settings
    ]
    what = f"a setting of {', '.join(elsewhere)}" if elsewhere else "newer, or misspelt"
    assumed = "it is left out"
    if near is not None and near in trainer.settings and near not in config:
        assumed += f", and {near} is {yaml_value(trainer.settings[near])}, its default"
    guess = f"did you mean {near}? " if near else ""
    ways = f"give the generation: --trainer {elsewhere[-1]}" if elsewhere else _WAYS
    return Finding(
        slug="newer-than-known",
        severity="warning",
        message=f"`{name}` is no setting of {trainer.known}, but {what}; {assumed}. All weights, "
        f"kept tokens and logged numbers are those without it ({where})",
        fix=f"{guess}{ways}",
        evidence={"setting": name, "value": value, "trainer": trainer.name, "assumed": None},
    )


def with_known_values(trainer: Trainer, config: Config, where: str) -> tuple[Config, list[Finding]]:
    """Take defaults in the place of values that the newest generation does not know.

    Each is a finding. An older generation changes no more: a value that it does not know is
    refused there, and in every generation where a user gives it and not a file.
    """
    findings: list[Finding] = []
    newest = families().get(trainer.family) is trainer
    while newest:
        try:
            trainer.read({**trainer.settings, **config})
        except UnknownValue as error:
            value = config.get(error.setting, error.assumed)
            if value == error.assumed:  # the default is no value, or the setting is of a list
                break
            findings.append(_newer_value(trainer, value, error, where))
            config = {**config, error.setting: error.assumed}
        except Refused:
            break
        else:
            break
    return config, findings


def _newer_value(trainer: Trainer, value: Any, error: UnknownValue, where: str) -> Finding:
    """Say that a setting has a value which the generation did not have, and what is assumed."""
    assumed = yaml_value(error.assumed)
    return Finding(
        slug="newer-than-known",
        severity="warning",
        message=f"{error.setting} = {value!r} is newer than {trainer.known}, or misspelt; "
        f"{assumed}, the default, is taken in its place. All weights, kept tokens and logged "
        f"numbers are those of {error.setting} = {assumed} ({where})",
        fix=f"{error.hint}; {_WAYS}",
        evidence={
            "setting": error.setting,
            "value": value,
            "trainer": trainer.name,
            "assumed": error.assumed,
        },
    )


_WAYS = "if it is newer, take a newer rcdiag, or set what it amounts to by known settings"
