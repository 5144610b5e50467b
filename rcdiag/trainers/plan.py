"""Turn presets and settings of a trainer into the corrections that a command computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from rcdiag.corrections.correction import Correction, in_float32
from rcdiag.errors import RcdiagError, did_you_mean, setting
from rcdiag.results import Finding
from rcdiag.trainers.newer import meant
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.toml_words import own_setting, read_former_presets
from rcdiag.trainers.trainer import Config, NotComputed, Refused, Trainer, UnknownValue

ARITHMETICS: dict[str, type[np.floating]] = {"float64": np.float64, "float32": np.float32}


class Plan(Struct, frozen=True):
    """The corrections to compute, each as the trainer's settings and in canonical form."""

    trainer: Trainer  # of all corrections that are not in `others`
    configs: Mapping[str, Config]  # preset -> the trainer's settings
    corrections: Mapping[str, Correction]
    dtype: type[np.floating] = np.float64  # arithmetic of the trainer's numbers
    findings: tuple[Finding, ...] = ()  # on how the settings were read
    others: Mapping[str, Trainer] = field(default_factory=dict)  # correction -> its trainer
    document: Document | None = None  # the trainer's own configuration file, if given
    named: bool = False  # whether the user named the corrections; else they are a trainer's presets

    def trainer_of(self, name: str) -> Trainer:
        """Return the trainer whose definitions apply to a correction."""
        return self.others.get(name, self.trainer)

    @property
    def trainers(self) -> list[Trainer]:
        """Return the trainers of all corrections, each once."""
        return list({one.name: one for one in map(self.trainer_of, self.corrections)}.values())

    @classmethod
    def joined(cls, plans: Mapping[str, Plan], findings: Sequence[Finding] = ()) -> Plan:
        """Combine plans of one correction each, under new names."""
        first = next(iter(plans.values()))
        able = {name: plan for name, plan in plans.items() if plan.corrections}
        return cls(
            first.trainer,
            {name: next(iter(plan.configs.values())) for name, plan in able.items()},
            {name: next(iter(plan.corrections.values())) for name, plan in able.items()},
            first.dtype,
            tuple([*findings, *(one for plan in plans.values() for one in plan.findings)]),
            {name: plan.trainer for name, plan in able.items()},
        )


def preset_configs(
    trainer: Trainer, names: Sequence[str], overrides: Mapping[str, Mapping[str, Any]]
) -> dict[str, Config]:
    """Return the settings of the named presets (default: all), with overrides.

    A name that occurs only in documents stands for the preset that they mean.
    """
    presets: dict[str, Config] = {}
    for name, former in read_former_presets(trainer.package).items():
        if former.preset in trainer.presets and former.settings.keys() <= trainer.settings.keys():
            presets[name] = {**trainer.presets[former.preset], **former.settings}
    presets |= trainer.presets
    for name in (*names, *overrides):
        if name not in presets:
            raise RcdiagError(
                f"{trainer.name} has no preset `{name}`",
                hint=f"{did_you_mean(name, trainer.presets)}presets: {', '.join(trainer.presets)}",
            )
        if names and name not in names:
            raise RcdiagError(
                f"settings of `{name}` change, which is not among the presets",
                hint=f"add it: {setting('presets', name, '--preset')}",
            )
    return {
        name: {**presets[name], **overrides.get(name, {})} for name in (names or trainer.presets)
    }


def plan_corrections(
    trainer: Trainer,
    configs: Mapping[str, Config],
    arithmetic: str = "float64",
    findings: Sequence[Finding] = (),
) -> Plan:
    """Read each configuration as the trainer would; if the trainer would stop, it is a finding."""
    whole: dict[str, Config] = {}
    corrections = {}
    refused = []
    traps: dict[str, Finding] = {}  # one per slug and message
    for name, config in configs.items():
        unknown = [key for key in config if key not in trainer.settings]
        if unknown:
            raise _unknown_setting(trainer, name, config, unknown[0])
        settings = {**trainer.settings, **config}
        try:
            corrections[name] = trainer.read(settings)
        except Refused as error:
            refused.append(_refused(trainer, name, settings, error))
        else:
            whole[name] = settings
            traps |= {finding.message: finding for finding in trainer.traps(settings)}
    if arithmetic == "float32":
        corrections = {name: in_float32(correction) for name, correction in corrections.items()}
    return Plan(
        trainer,
        whole,
        corrections,
        ARITHMETICS[arithmetic],
        tuple([*findings, *refused, *traps.values()]),
    )


def _unknown_setting(trainer: Trainer, preset: str, config: Config, name: str) -> RcdiagError:
    """Suggest the setting that was probably meant, or the trainer's own name for it."""
    if (own := own_setting(trainer.package, name)) is not None and own[0] in trainer.settings:
        return RcdiagError(
            f"{preset}: {trainer.name} has no setting `{name}`",
            hint=f"`{own[0]}`: only {own[1]} calls it `{name}`",
        )
    near = meant(trainer, config, name, config[name])
    return RcdiagError(
        f"{preset}: {trainer.name} has no setting `{name}` ({trainer.words.until})",
        hint=f"did you mean {near}?" if near else f"{', '.join(trainer.settings)}",
    )


def _refused(trainer: Trainer, name: str, settings: Config, error: Refused) -> Finding:
    evidence = {"preset": name, "trainer": trainer.name, "config": dict(settings)}
    if isinstance(error, NotComputed):
        return Finding(
            slug="settings-not-computed",
            severity="error",
            message=f"{name}: {trainer.name} takes {error.message}; nothing is computed for it",
            fix=error.hint,
            evidence=evidence,
        )
    if isinstance(error, UnknownValue):  # nobody has said what a newer version does with it
        message = (
            f"unknown value of {error.message} at {trainer.known}, so it is newer, or misspelt"
        )
    else:
        message = f"{trainer.family} stops on {error.message} (at {trainer.known}; a newer version "
        message += "may take it)"
    return Finding(
        slug="trainer-refuses",
        severity="error",
        message=f"{name}: {message}; nothing is computed for it",
        fix=error.hint,
        evidence=evidence,
    )
