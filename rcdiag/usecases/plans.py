"""The corrections that a user asks for: presets of a trainer, or a trainer's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rcdiag.errors import RcdiagError, one_of, setting
from rcdiag.results import Finding
from rcdiag.table.table import Table
from rcdiag.trainers import DEFAULT, families, find_trainer, spoken_name
from rcdiag.trainers.carry import Carried, carried, named
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.plan import ARITHMETICS, Plan, plan_corrections, preset_configs

Settings = Mapping[str, Mapping[str, Any]]  # preset -> setting -> value
# The name that the correction of a trainer's configuration file goes by, in place of a preset's.
CONFIG = "config"
ALL = "all"  # in place of a trainer's name
PRESETS, SETTINGS = setting("presets", option="--preset"), setting("settings", option="--set")


def plan_of(
    *,
    trainer: str | None = None,
    presets: str | Sequence[str] = (),
    settings: Settings | None = None,
    trainer_config: str | Path | None = None,
    arithmetic: str = "float64",
    carry: str | None = None,
) -> Plan:
    """Make a plan of corrections from a trainer's presets (by default all) or its configuration.

    `settings` overrides some settings: preset -> setting -> value; with `trainer_config` the preset
    is called `config`. Trainer `all` means the default of every trainer; `carry` is a
    TRAINER:PRESET whose equivalent in all other trainers is planned.
    """
    one_of("arithmetic", arithmetic, ARITHMETICS)
    overrides = dict(settings or {})
    names = [presets] if isinstance(presets, str) else list(dict.fromkeys(presets))
    if trainer == ALL or carry is not None:
        _check_alone(trainer, carry, names, overrides, trainer_config)
        if carry is not None:
            return replace(_carried_plan(carry, arithmetic), named=True)
        # The defaults of the newest generation of every trainer.
        return Plan.joined(
            {
                family: plan_corrections(one, {"default": one.unset}, arithmetic)
                for family, one in families().items()
            }
        )
    if trainer_config is None:
        chosen = find_trainer(trainer or DEFAULT)
        plan = plan_corrections(chosen, preset_configs(chosen, names, overrides), arithmetic)
        return replace(plan, named=bool(names or overrides))
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
    plan = plan_corrections(read.trainer, {CONFIG: changed}, arithmetic, read.findings)
    return replace(plan, document=read.document, named=True)


def with_hint_at_trainer(plan: Plan, table: Table) -> Plan:
    """Add a note to the default plan if the dump was written by another trainer."""
    converted = table.metadata.get("conversion", {}).get("format", "").removesuffix("-jsonl")
    programs = {converted, *table.naming.programs} - {""}
    if not programs:
        return plan  # the other trainers are not loaded
    others = [families()[name] for name in programs & families().keys()]
    if len(others) != 1 or others[0].family == plan.trainer.family:
        return plan
    other = others[0].family
    shown = "the dump is" if other == converted else "the column names are"
    note = Finding(
        slug="trainer-not-chosen",
        severity="note",
        message=f"{shown} from {other}, the presets are those of {plan.trainer.name}: "
        f"{setting('trainer', other)} computes its own",
        fix=setting("trainer", other),
        evidence={"dump": other, "trainer": plan.trainer.name},
    )
    return replace(plan, findings=(*plan.findings, note))


def _check_alone(
    trainer: str | None,
    carry: str | None,
    names: Sequence[str],
    overrides: Settings,
    trainer_config: str | Path | None,
) -> None:
    """Refuse options that have no meaning together with all trainers."""
    if trainer not in (None, ALL):
        raise RcdiagError(
            f"{setting('carry')} takes all trainers",
            hint=f"omit {setting('trainer')}; TRAINER:PRESET names the trainer",
        )
    given = {PRESETS: names, SETTINGS: overrides, setting("trainer_config"): trainer_config}
    if both := [name for name, value in given.items() if value]:
        what = setting("trainer", ALL) if carry is None else setting("carry", carry)
        raise RcdiagError(
            f"{what} and {both[0]} are given",
            hint="omit one of the two: the first takes every trainer with its own settings",
        )


def _carried_plan(text: str, arithmetic: str) -> Plan:
    """Plan a preset of one trainer, and its equivalent in every other trainer."""
    source, preset = named(text)
    first = plan_corrections(source, {preset: source.presets[preset]}, arithmetic)
    if not first.corrections:
        return first
    plans = {f"{spoken_name(source)}:{preset}": first}
    findings = []
    for other in carried(first.corrections[preset], source):
        findings.append(_carried_finding(text, other))
        if other.settings is not None:
            name = spoken_name(other.trainer)
            settings = {name: other.settings.settings}
            plans[name] = plan_corrections(other.trainer, settings, arithmetic)
    return Plan.joined(plans, findings)


def _carried_finding(text: str, other: Carried) -> Finding:
    """Report another trainer's equivalent of a preset."""
    name = spoken_name(other.trainer)
    if other.settings is None:
        reads, message = "none", f"{name} has nothing near {text}: it has no {other.lacks}"
    elif other.differs:
        reads = "near"
        message = f"{name} has only something near {text}: it {', and '.join(other.differs)}"
    else:
        reads, message = "equal", f"{name} has an equal of {text}"
    settings = None if other.settings is None else other.settings.settings
    as_yaml = ", ".join(f"{key}: {json.dumps(value)}" for key, value in (settings or {}).items())
    return Finding(
        slug="carried-over",
        severity="note",
        message=message,
        fix=f"set in {name}: {as_yaml}" if as_yaml else "choose another preset to carry over",
        evidence={"trainer": other.trainer.name, "reads": reads, "settings": settings},
    )
