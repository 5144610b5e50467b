"""Findings on settings that a trainer did not have in the version that rcdiag knows.

Trainers change every week. An unknown setting is either newer than that version or misspelt:
rcdiag says which version and date it knows, what it assumes, and continues.
"""

from __future__ import annotations

from typing import Any

from rcdiag.errors import nearest
from rcdiag.formats import yaml_value
from rcdiag.results import Finding
from rcdiag.trainers import TRAINERS, families
from rcdiag.trainers.trainer import Config, Refused, Trainer, UnknownValue


def meant(trainer: Trainer, config: Config, name: str, value: Any) -> str | None:
    """Return the setting that was probably meant: a similar name, else one that has an effect."""
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
    """Report that a file sets something that is not a setting of a generation and is ignored.

    `near` is the setting that may be meant, `config` holds the other settings of the file.
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
        message=f"`{name}` is not a setting of {trainer.known}, but {what}; {assumed}. Weights, "
        f"kept tokens and logged numbers are those without it ({where})",
        fix=f"{guess}{ways}",
        evidence={"setting": name, "value": value, "trainer": trainer.name, "assumed": None},
    )


def with_known_values(trainer: Trainer, config: Config, where: str) -> tuple[Config, list[Finding]]:
    """Replace values that the newest generation does not know by defaults.

    Each is a finding. Older generations do not change any more: an unknown value is refused there,
    and in every generation if the user gives it directly and not in a file. If the other settings
    do not go with a default, nothing is assumed: the trainer would not stop on them in this file.
    """
    given, findings = config, list[Finding]()
    newest = families().get(trainer.family) is trainer
    while newest:
        try:
            trainer.read({**trainer.settings, **config})
        except UnknownValue as error:
            value = config.get(error.setting, error.assumed)
            if value == error.assumed:  # the default itself is unknown, or it is a list setting
                break
            findings.append(_newer_value(trainer, value, error, where))
            config = {**config, error.setting: error.assumed}
        except Refused:
            return given, []
        else:
            break
    return config, findings


def _newer_value(trainer: Trainer, value: Any, error: UnknownValue, where: str) -> Finding:
    """Report that a generation did not have the value of a setting, and what is assumed."""
    assumed = yaml_value(error.assumed)
    return Finding(
        slug="newer-than-known",
        severity="warning",
        message=f"{error.setting} = {value!r} is read as {assumed}, the default: it is newer than "
        f"{trainer.known}, or misspelt. All weights, kept tokens and logged numbers are those of "
        f"{error.setting} = {assumed} ({where})",
        fix=f"{error.hint}; {_WAYS}",
        evidence={
            "setting": error.setting,
            "value": value,
            "trainer": trainer.name,
            "assumed": error.assumed,
        },
    )


_WAYS = "if it is newer, use a newer rcdiag, or express its effect by known settings"
