"""Batches of one update: from padded arrays, and as tables on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rcdiag.results import PresetReplay, ReplayResult
from rcdiag.table.opening import open_table
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan, preset_configs
from rcdiag.usecases.replay.run import replay
from rcdiag.usecases.replay.update import TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch, Roles, replay_batch
from tests.builders import flat, make_trajectories, write_table
from tests.corrections.builders import plan_corrections
from tests.losses.rules import default_settings

Lists = Sequence[Sequence[float]]


def plan_of(trainer: str = "verl-0.9", **configs: Mapping[str, Any]) -> Plan:
    """Make a plan of named corrections by trainer settings, or of all its presets."""
    result = find_trainer(trainer)
    return plan_corrections(result, configs or preset_configs(result, [], {}))


def update_of(trainer: str = "verl-0.9", plan: Plan | None = None, **given: Any) -> TrainerUpdate:
    """Make an update with the trainer's own presets, loss and settings unless given."""
    names = ("loss", "advantage", "rebaseline")
    of_update = {"loss": "vanilla", "advantage": "column"}
    of_update |= {name: given.pop(name) for name in names if name in given}
    settings = default_settings(trainer).changed(**given)
    return TrainerUpdate(plan=plan or plan_of(trainer), settings=settings, **of_update)


def replay_of(
    path: Path,
    plan: Plan | None = None,
    update: TrainerUpdate | None = None,
    *,
    roles: Roles | None = None,
    **options: Any,
) -> ReplayResult:
    """Run the use case on a table; `current` is used if recorded, as on the command line."""
    dump = open_table(path)
    current = "current" if "current" in dump.policies else None
    roles = roles or Roles(current=current)
    update = update or update_of()
    update = update if plan is None else replace(update, plan=plan)
    return replay(dump, update, roles=roles, **options)


def one(
    path: Path, config: Mapping[str, Any], trainer: str = "verl-0.9", **given: Any
) -> PresetReplay:
    """Replay a single preset of a table."""
    plan = plan_of(trainer, it=config)
    return replay_of(path, plan, update_of(trainer, **given)).presets["it"]


def naive_of(path: Path, **given: Any) -> PresetReplay:
    return replay_of(path, plan_of(off={"rollout_is": None}), update_of(**given)).presets["naive"]


def table_of(path: Path, rollout: Lists, old: Lists | None = None, **columns: Any) -> Path:
    """Write a table of log-probs; token ids count up, `old` equals the rollout unless given."""
    return write_table(
        path,
        response_ids=[list(range(1, len(row) + 1)) for row in rollout],
        rollout_log_probs=rollout,
        old_log_probs=rollout if old is None else old,
        **columns,
    )


def batch_of(
    rollout: Lists,
    old: Lists,
    advantages: Lists,
    current: Lists | None = None,
    mask: Lists | None = None,
    **columns: Any,
) -> ReplayBatch:
    """Make the batch of some rows, ragged or padded; without `mask` all tokens are sampled.

    `columns` are `cluster` and `reward`; without clusters each row is its own group.
    """
    rows = make_trajectories(rollout, old, mask, **columns)
    log_probs = {**rows.log_probs, "current": flat(old if current is None else current)}
    rows = dataclasses.replace(rows, log_probs=log_probs, advantages=flat(advantages))
    return replay_batch([rows], Roles(current="current"), "column")
