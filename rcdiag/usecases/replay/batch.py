"""The batch of one update, flat as trainers hold it padded: from stored rows to one step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.losses import ADVANTAGES
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.segments import segment_sum
from rcdiag.table.tokens import TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Trajectories

Array = NDArray[np.float64]


ROLES = ("rollout", "old", "current")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayBatch:
    """The batch of one update: what trainers hold padded, flat."""

    step: int | None
    tokens: TokenBatch  # log-probs under the policies `rollout`, `old` and `current`
    advantages: Array  # [tokens]
    width: int  # the longest response, masked tokens counted
    empty: int  # rows without a sampled token: trainers count some of them

    @property
    def rollout(self) -> Array:
        """Log-probs under the policy that sampled, nats, [tokens]."""
        return self.tokens.log_probs["rollout"]

    @property
    def old(self) -> Array:
        """Log-probs under the trainer's policy before the update, nats, [tokens]."""
        return self.tokens.log_probs["old"]

    @property
    def current(self) -> Array:
        """Log-probs under the policy that is updated, nats, [tokens]."""
        return self.tokens.log_probs["current"]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Sampled tokens of each sequence, [sequences]."""
        return self.tokens.lengths

    @property
    def group(self) -> NDArray[np.uint64]:
        """Prompt group of each sequence, [sequences]."""
        return self.tokens.cluster

    @property
    def num_tokens(self) -> int:
        return len(self.advantages)

    def pair(self, behavior: str, target: str) -> PolicyPair:
        """Two of `rollout`, `old` and `current` on the tokens of the batch."""
        return PolicyPair(self.tokens, behavior, target)

    def with_log_probs(self, **log_probs: Array) -> ReplayBatch:
        """The batch with other log-probs [tokens] of `old` or `current`."""
        known = {**self.tokens.log_probs, **log_probs}
        return replace(self, tokens=replace(self.tokens, log_probs=known))

    def take(self, rows: NDArray[np.int64]) -> ReplayBatch:
        """Some sequences of the batch; rows without a token belong to the whole batch alone."""
        keep = np.isin(np.arange(len(self.lengths)), rows)
        everything = bool(keep.all())
        return replace(
            self,
            tokens=self.tokens if everything else self.tokens.take(keep, {}),
            advantages=self.advantages[np.repeat(keep, self.lengths)],
            empty=self.empty if everything else 0,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table of which some are chosen; the tokens of the others are masked."""

    trajectories: Trajectories
    chosen: NDArray[np.bool_]  # [rows]


def part_of(trajectories: Trajectories, step: int | None) -> Part:
    """The rows of a step; all where there are no steps."""
    if step is None or trajectories.step is None:
        return Part(trajectories, np.ones(len(trajectories), np.bool_))
    chosen = trajectories.step == step
    mask = trajectories.mask & np.repeat(chosen, trajectories.response_ids.lengths)
    return Part(replace(trajectories, mask=mask), chosen)


def replay_batch(chosen: Sequence[Part], names: Sequence[str], advantage: str) -> ReplayBatch:
    """The batch of some rows; `names` are the rollout, old and current policies of the table.

    Current log-probs that are not recorded are those of the old policy: the first mini-batch.
    """
    batches = [sampled_tokens(part.trajectories, tuple(dict.fromkeys(names))) for part in chosen]
    tokens = batches[0]
    for batch in batches[1:]:
        tokens = tokens + batch
    roles = {role: tokens.log_probs[name] for role, name in zip(ROLES, names, strict=True)}
    tokens = replace(tokens, log_probs=roles)
    rows = int(sum(part.chosen.sum() for part in chosen))
    widest = (part.trajectories.response_ids.lengths[part.chosen] for part in chosen)
    return ReplayBatch(
        step=None,
        tokens=tokens,
        advantages=_advantages(tokens, advantage),
        width=max(int(lengths.max(initial=0)) for lengths in widest),
        empty=rows - len(tokens.lengths),
    )


def _advantages(tokens: TokenBatch, source: str) -> Array:
    """Advantage of each token, [tokens]: by the column, or from rewards and groups."""
    if source != "column":
        by_row = computed_advantages(source, tokens.rewards, tokens.cluster, tokens.lengths)
        return np.repeat(by_row, tokens.lengths)
    found = tokens.advantages
    if found is None:
        assert tokens.advantage is not None
        found = np.repeat(tokens.advantage, tokens.lengths)
    unknown = int((~np.isfinite(found)).sum())
    if unknown:
        raise RcdiagError(
            f"{unknown:,} unmasked tokens have no finite advantage",
            hint="fill the column, or compute it: --advantage grpo",
        )
    return found


def computed_advantages(
    source: str, reward: Array, group: NDArray, lengths: NDArray[np.int64]
) -> Array:
    """[rows] by the formula of that name."""
    unknown = int((~np.isfinite(reward)).sum())
    if unknown:
        raise RcdiagError(
            f"{unknown:,} of {len(reward):,} rows have no finite reward to compute "
            f"{source} advantages from",
            hint="fill the column `reward`, or record `advantage` and take --advantage column",
        )
    _, sizes = np.unique(group, return_counts=True)
    if ADVANTAGES[source].by_group and (sizes < 2).all():
        raise RcdiagError(
            f"every prompt group has one sequence: {source} has no baseline there",
            hint="record `group_id`, or take --advantage reinforce++",
        )
    return ADVANTAGES[source](reward, group, lengths)


def without_rejected(batch: ReplayBatch, kept: NDArray[np.bool_], source: str) -> Array:
    """[tokens] advantages whose baselines are made of the kept sequences alone (verl #6362)."""
    rows = segment_sum(kept.astype(np.int64), batch.lengths) > 0
    advantages = np.zeros(len(batch.lengths))
    if rows.any():
        part = (batch.tokens.rewards[rows], batch.group[rows], batch.lengths[rows])
        advantages[rows] = ADVANTAGES[source](*part)
    return np.repeat(advantages, batch.lengths)


def advantage_source(wanted: str | None, columns: Collection[str]) -> str:
    """The column where there is one, else GRPO from rewards and groups."""
    recorded = "advantage" in columns or "advantages" in columns
    if wanted == "column" and not recorded:
        raise RcdiagError(
            "--advantage column: the table has neither `advantage` nor `advantages`",
            hint="--advantage grpo computes it from `reward` and `group_id`",
        )
    if wanted is not None:
        return wanted if wanted == "column" else ADVANTAGES.find(wanted, "--advantage").name
    if recorded:
        return "column"
    if "reward" in columns:
        return "grpo"
    raise RcdiagError(
        "the table has neither advantages nor rewards: there is no loss to replay",
        hint="record `reward` (and `group_id`), or `advantage`",
    )
