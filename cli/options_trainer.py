"""Options of `score` that choose a trainer and its corrections."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rcdiag.trainers.plan import Plan

PANEL = "Correction"


class Arithmetic(StrEnum):
    """In what the trainer's numbers are computed."""

    float64 = "float64"
    float32 = "float32"


TrainerName = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="NAME",
        help="Whose definitions and names: verl (the newest), verl-0.6.0, ..., slime",
        rich_help_panel=PANEL,
    ),
]
Preset = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Only this preset of the trainer; repeatable; default all",
        rich_help_panel=PANEL,
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PRESET.SETTING=VALUE",
        help="Change a preset, e.g. decoupled_token_is.rollout_is_threshold=3; repeatable",
        rich_help_panel=PANEL,
    ),
]
TrainerConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trainer's own YAML, taken as it is, instead of presets",
        rich_help_panel=PANEL,
    ),
]
ArithmeticOption = Annotated[
    Arithmetic,
    typer.Option(
        "--arithmetic",
        help="float32 reproduces the rounding of the trainer's own numbers",
        rich_help_panel=PANEL,
    ),
]


def plan(
    trainer: str | None,
    presets: list[str] | None,
    settings: list[str] | None,
    config: Path | None,
    arithmetic: Arithmetic,
) -> Plan:
    """The corrections that the options ask for."""
    from rcdiag.errors import RcdiagError
    from rcdiag.trainers import DEFAULT, find_trainer
    from rcdiag.trainers.config import read_trainer_config
    from rcdiag.trainers.plan import plan_corrections, preset_configs

    overrides = _overrides(settings or [])
    if config is None:
        chosen = find_trainer(trainer or DEFAULT)
        names = list(dict.fromkeys([*(presets or [])]))
        configs = preset_configs(chosen, names, overrides)
        return plan_corrections(chosen, configs, arithmetic)
    if presets:
        raise RcdiagError("--preset and --trainer-config", hint="one or the other")
    read = read_trainer_config(config, trainer)
    changed = {**read.settings, **overrides.pop("config", {})}
    if overrides:
        raise RcdiagError(
            f"--set {next(iter(overrides))}...: with --trainer-config there is `config` alone",
            hint="--set config.SETTING=VALUE",
        )
    return plan_corrections(read.trainer, {"config": changed}, arithmetic, read.findings)


def _overrides(texts: list[str]) -> dict[str, dict[str, Any]]:
    import yaml

    from rcdiag.errors import RcdiagError

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        preset, dot, setting = place.partition(".")
        if not (equals and dot and preset and setting and value):
            raise RcdiagError(
                f"--set {text}: wanted PRESET.SETTING=VALUE",
                hint="for example --set decoupled_token_is.rollout_is_threshold=3",
            )
        # Nobody means 0.55 by 0.5_5 here: bounds stay text.
        found.setdefault(preset, {})[setting] = value if "_" in value else yaml.safe_load(value)
    return found
