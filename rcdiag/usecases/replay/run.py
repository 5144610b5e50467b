"""Use case `replay`: the step that each preset would have taken on a recorded batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.errors import RcdiagError
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW
from rcdiag.results import Factor, PresetReplay, ReplayResult
from rcdiag.statistics.adding import RunningSum
from rcdiag.statistics.extremes import NonFinite
from rcdiag.table.columns import known_steps
from rcdiag.table.stream import read_trajectories
from rcdiag.table.table import Table
from rcdiag.table.tokens import sampled_tokens
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.replay.batch import Part, ReplayBatch, part_of, replay_batch
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.preset import NAIVE, Update, loss_of_preset, preset_replay


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """Which recorded policies are the sampler, the trainer before, and the trainer during."""

    rollout: str = "rollout"
    old: str = "old"
    current: str | None = None  # None: the old one, as at the first mini-batch

    @property
    def names(self) -> tuple[str, str, str]:
        return self.rollout, self.old, self.current or self.old


def replay(
    dump: Table,
    plan: Plan,
    update: Update,
    *,
    roles: Roles,
    step: int | None = None,
    seed: int = 0,
) -> ReplayResult:
    """Every preset of the plan, and the update without any correction, on one batch.

    The batch is one training step: `step`, or the last one, or the whole table without steps.
    """
    parts, chosen, non_finite = read_step(dump, roles, step)
    batch = replace(replay_batch(parts, roles.names, update.advantage), step=chosen)
    found = factors(batch, seed)
    presets = {
        name: preset_replay(plan, name, loss_of_preset(plan, name, batch, update), found)
        for name in (*plan.corrections, NAIVE)
    }
    result = result_of(dump, plan, update, roles, batch, presets, found, seed)
    return with_findings(result, plan, non_finite)


def result_of(
    dump: Table,
    plan: Plan,
    update: Update,
    roles: Roles,
    batch: ReplayBatch,
    presets: dict[str, PresetReplay],
    found: dict[str, Factor],
    seed: int,
) -> ReplayResult:
    """The result without findings."""
    return ReplayResult(
        provenance=provenance(dump, seed),
        trainer=plan.trainer.name,
        rollout=roles.rollout,
        old=roles.old,
        current=roles.names[2],
        policy_loss=update.loss,
        aggregation=update.settings.aggregation,
        advantage=update.advantage,
        clip_low=update.settings.value(CLIP_LOW),
        clip_high=update.settings.value(CLIP_HIGH),
        step=batch.step,
        num_sequences=len(batch.lengths),
        num_tokens=batch.num_tokens,
        num_groups=len(np.unique(batch.group)),
        empty_sequences=batch.empty,
        factors=found,
        presets=presets,
    )


def with_findings(result: ReplayResult, plan: Plan, non_finite: NonFinite) -> ReplayResult:
    """The result with the findings of all checks on it."""
    return replace(
        result, findings=findings(CheckInput(result=result, non_finite=non_finite, plan=plan))
    )


def read_step(
    dump: Table, roles: Roles, step: int | None, *, prompts: bool = False
) -> tuple[list[Part], int | None, NonFinite]:
    """The rows of one step, by default the last."""
    names = tuple(dict.fromkeys(roles.names))
    known = known_steps(dump)
    chosen = step if step is not None or not known else known[-1]
    if chosen is not None and chosen not in known:
        said = ", ".join(map(str, known))
        raise RcdiagError(
            f"{dump.files[0].path}: no step {step}",
            hint=f"there are {said}" if said else "the table has no column `step`",
        )
    parts = []
    bad: RunningSum[NonFinite] = RunningSum()
    for trajectories in read_trajectories(dump, names, prompts=prompts):
        part = part_of(trajectories, chosen)
        if part.chosen.any():
            parts.append(part)
            bad.add(NonFinite.of(sampled_tokens(part.trajectories, names)))
    if not any(part.trajectories.mask.any() for part in parts):
        raise RcdiagError(
            f"{dump.files[0].path}: no unmasked response token to learn from",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    non_finite = bad.total()
    assert non_finite is not None
    return parts, chosen, non_finite
