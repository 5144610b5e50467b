"""The plans that may give the numbers of a log: other arithmetic, generations and presets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.correction import in_float32
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.trainers.toml_words import read_renamed_presets
from rcdiag.trainers.trainer import Trainer

GIVEN, OTHER_ARITHMETIC, OTHER_PRESETS = "given", "arithmetic", "presets"


def tried_plans(plan: Plan, preset: str) -> dict[str, Plan]:
    """Return the plans to try: the given preset, other generations, other presets."""
    trainer = plan.trainer
    others = {**trainer.presets, **{name: plan.configs[name] for name in plan.corrections}}
    others.pop(preset, None)
    presets = _in_arithmetic(plan_corrections(trainer, others), plan)
    # The table is read in parts, and M2PO compares all tokens of a batch.
    of_parts = [name for name, one in presets.corrections.items() if not one.needs_whole_batch]
    return {
        GIVEN: only(plan, [preset]),
        **_generations(plan, preset),
        OTHER_PRESETS: only(presets, of_parts),
    }


def only(plan: Plan, presets: Sequence[str]) -> Plan:
    """Return the plan with only some of its presets, and without its findings."""
    return replace(
        plan,
        configs={name: plan.configs[name] for name in presets},
        corrections={name: plan.corrections[name] for name in presets},
        findings=(),
    )


def _in_arithmetic(plan: Plan, like: Plan) -> Plan:
    return _float32(plan) if like.dtype == np.float32 else plan


def _float32(plan: Plan) -> Plan:
    corrections = {name: in_float32(one) for name, one in plan.corrections.items()}
    return replace(plan, corrections=corrections, dtype=np.float32)


def other_arithmetic(plan: Plan) -> Plan:
    """Return the plan in float32, or in float64 if it is in float32."""
    if plan.dtype != np.float32:
        return _float32(plan)
    return plan_corrections(plan.trainer, plan.configs)


def _generations(plan: Plan, preset: str) -> dict[str, Plan]:
    """Return plans with the preset in all other generations of the trainer, by generation."""
    plans = {}
    family = [other for other in TRAINERS.values() if other.family == plan.trainer.family]
    # The nearest generation comes first.
    own = family.index(plan.trainer)
    for other in sorted(family, key=lambda one: abs(family.index(one) - own)):
        if other is plan.trainer:
            continue
        config = _config_of(other, plan, preset)
        plans[other.name] = _in_arithmetic(plan_corrections(other, {preset: config}), plan)
    return plans


def _config_of(other: Trainer, plan: Plan, preset: str) -> dict[str, object]:
    """Return the settings of another generation: its preset, with the changes made to ours."""
    trainer = plan.trainer
    config = dict(plan.configs[preset])
    renamed = read_renamed_presets(trainer.package).get(preset, ())
    own = next((name for name in (preset, *renamed) if name in other.presets), None)
    if own is None or preset not in trainer.presets:
        return {name: value for name, value in config.items() if name in other.settings}
    before = {**trainer.settings, **trainer.presets[preset]}
    changed = {
        name: value
        for name, value in config.items()
        if name in other.settings and before.get(name) != value
    }
    return {**other.presets[own], **changed}
