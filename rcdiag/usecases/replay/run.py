"""Use case `replay`: the step that each preset would have taken on a recorded batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.results import Factor, PresetReplay, ReplayResult
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.usecases.diagnosed import diagnosis_of_table, with_findings
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.paired import PresetNumbers, of_loss, paired_differences
from rcdiag.usecases.replay.preset import loss_of_preset
from rcdiag.usecases.replay.preset_result import preset_replay
from rcdiag.usecases.replay.update import TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch, Roles, read_batch


def replay(
    dump: Table, update: TrainerUpdate, *, roles: Roles, step: int | None = None, seed: int = 0
) -> ReplayResult:
    """Replay every preset of the plan, and the update without any correction, on one batch.

    The batch is one training step: `step`, or the last one, or the whole table without steps.
    """
    batch = read_batch(dump, roles, step, update.advantage)
    diagnosis = diagnosis_of_table(dump)
    ratios = factors(batch, diagnosis, roles.names)
    presets, numbers = {}, {}
    for name in update.names:
        loss = loss_of_preset(name, batch, update)
        presets[name] = preset_replay(name, loss, ratios, update)
        numbers[name] = PresetNumbers(of_loss(loss))
    rollout, old, current = roles.names
    sources = {"rollout": rollout, "old": old, "current": current}
    return replay_result(
        dump,
        update,
        batch,
        presets,
        ratios,
        seed,
        diagnosis=diagnosis,
        paired=paired_differences(numbers),
        **sources,
    )


def replay_result(
    dump: Table,
    update: TrainerUpdate,
    batch: ReplayBatch,
    presets: dict[str, PresetReplay],
    ratios: dict[str, Factor],
    seed: int,
    device: str | None = None,
    **fields: Any,
) -> ReplayResult:
    """Build the result of a replay, with its findings.

    `fields` are the diagnosis and the sources of log-probs; with a model they also hold its
    description and later steps, and `device` is where it ran.
    """
    result = ReplayResult(
        provenance=provenance(dump, seed, device),
        trainer=update.plan.trainer.name,
        policy_loss=update.loss,
        aggregation=update.settings.aggregation,
        advantage=update.advantage,
        clip_low=update.clip[0],
        clip_high=update.clip[1],
        step=batch.step,
        num_sequences=len(batch.lengths),
        num_tokens=batch.num_tokens,
        num_groups=len(np.unique(batch.group)),
        empty_sequences=batch.empty,
        factors=ratios,
        presets=presets,
        **fields,
    )
    read = [fields.get(role, "") for role in ("rollout", "old", "current")]
    lacking = unobserved(dump, [name for name in read if name in dump.policies])
    return with_findings(
        result, dump, non_finite=batch.non_finite, unobserved=lacking, plan=update.plan
    )
