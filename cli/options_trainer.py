"""These options of `score` choose a trainer and its corrections."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rcdiag.errors import RcdiagError

PANEL = "Correction"


class Arithmetic(StrEnum):
    """The precision in which the trainer's numbers are computed."""

    float64 = "float64"
    float32 = "float32"


def complete_trainer(incomplete: str) -> list[str]:
    """Complete the name of a trainer in the shell."""
    from rcdiag.trainers import trainer_names

    return [name for name in (*trainer_names(), "all") if name.startswith(incomplete)]


def complete_preset(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a preset of the trainer that was given, or of the default one."""
    from rcdiag.trainers import DEFAULT, find_trainer

    presets = find_trainer(context.params.get("trainer") or DEFAULT).presets
    return [name for name in presets if name.startswith(incomplete)]


TrainerName = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="NAME",
        help="Trainer whose presets and metrics are computed ({trainers}), or `all`: the default "
        "of each",
        autocompletion=complete_trainer,
        rich_help_panel=PANEL,
    ),
]
Preset = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Compute only this preset; repeatable; default all",
        autocompletion=complete_preset,
        rich_help_panel=PANEL,
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PRESET.SETTING=VALUE",
        help="Change a setting of a preset; repeatable",
        rich_help_panel=PANEL,
    ),
]
TrainerConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The trainer's own config (YAML, TOML, JSON or a launch script) instead of presets",
        rich_help_panel=PANEL,
    ),
]
ArithmeticOption = Annotated[
    Arithmetic,
    typer.Option(
        "--arithmetic",
        help="float32 reproduces the rounding in the trainer's numbers",
        rich_help_panel=PANEL,
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--logged",
        metavar="FILE",
        help="The trainer's metrics log to compare with: JSONL, CSV, W&B history, TensorBoard, or "
        "console output",
        rich_help_panel=PANEL,
    ),
]

Carry = Annotated[
    str | None,
    typer.Option(
        metavar="TRAINER:PRESET",
        help="Compare a preset with its equivalent in every trainer, e.g. trl:sequence_mask",
        rich_help_panel=PANEL,
    ),
]


def parse_settings(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """Read `--set PRESET.SETTING=VALUE` options as preset -> setting -> value, as YAML has it."""
    settings: dict[str, dict[str, Any]] = {}
    if not texts:
        return settings
    from rcdiag.trainers.config_text import read_yaml

    for text in texts:
        place, equals, value = text.partition("=")
        preset, dot, setting = place.partition(".")
        if not (equals and dot and preset and setting and value):
            raise RcdiagError(
                f"--set {text}: wanted PRESET.SETTING=VALUE",
                hint="for example --set decoupled_token_is.rollout_is_threshold=3",
            )
        # YAML reads 0.5_5 as 0.55; here it is a pair of bounds and stays text.
        try:
            settings.setdefault(preset, {})[setting] = value if "_" in value else read_yaml(value)
        except ValueError as error:
            raise RcdiagError(
                f"--set {text}: the value cannot be read ({error})",
                hint="a number, a word, true, false, null or a list: [0.5, 2]",
            ) from error
    return settings
