"""The corrections that a user asks for: presets of a trainer, or a trainer's own configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError, one_of, setting
from rcdiag.trainers import DEFAULT, find_trainer
from rcdiag.trainers.config import read_trainer_config
from rcdiag.trainers.plan import ARITHMETICS, Plan, plan_corrections, preset_configs

Settings = Mapping[str, Mapping[str, Any]]  # preset -> setting -> value
# The name that the correction of a trainer's configuration file goes by, in place of a preset's.
CONFIG = "config"
PRESETS, SETTINGS = setting("presets", option="--preset"), setting("settings", option="--set")


def plan_of(
    *,
    trainer: str | None = None,
    presets: str | Sequence[str] = (),
    settings: Settings | None = None,
    trainer_config: str | Path | None = None,
    arithmetic: str = "float64",
) -> Plan:
    """Read the presets of a trainer (all without names) or its configuration into corrections.

    `settings` changes some: preset -> setting -> value, and `config` is the preset's name where
    `trainer_config` is given.
    """
    one_of("arithmetic", arithmetic, ARITHMETICS)
    overrides = dict(settings or {})
    names = [presets] if isinstance(presets, str) else list(dict.fromkeys(presets))
    if trainer_config is None:
        chosen = find_trainer(trainer or DEFAULT)
        return plan_corrections(chosen, preset_configs(chosen, names, overrides), arithmetic)
    if names:
        both = f"{PRESETS} and {setting('trainer_config')}"
        raise RcdiagError(f"{both} are given", hint="take one or the other")
    read = read_trainer_config(Path(trainer_config), trainer)
    changed = {**read.settings, **overrides.pop(CONFIG, {})}
    if overrides:
        raise RcdiagError(
            f"{SETTINGS} change `{next(iter(overrides))}`: {setting('trainer_config')} has "
            f"`{CONFIG}` alone",
            hint=f"change `{CONFIG}`, for example --set {CONFIG}.SETTING=VALUE",
        )
    return plan_corrections(read.trainer, {CONFIG: changed}, arithmetic, read.findings)
