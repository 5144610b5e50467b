"""The batch of one update, flat as trainers hold it padded: from stored rows to one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.quantities import Quantity, Tokens
from rcdiag.corrections.sequences import Rows, rows_of
from rcdiag.errors import RcdiagError
from rcdiag.losses import ADVANTAGES
from rcdiag.statistics.block import Block
from rcdiag.statistics.ratios import TokenValues
from rcdiag.table.segments import segment_sum
from rcdiag.table.trajectories import PolicyPair, Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayBatch:
    """Rows with at least one unmasked token; tokens are unmasked ones."""

    step: int | None
    rollout: Array  # [tokens] log-probs, nats
    old: Array
    current: Array
    advantages: Array  # [tokens]
    lengths: NDArray[np.int64]  # [rows]
    group: NDArray[np.uint64]  # [rows]
    reward: Array  # [rows] NaN = unknown
    row: NDArray[np.int64]  # [rows] in the table
    width: int  # the longest response, masked tokens counted
    empty: int  # rows without an unmasked token: trainers count some of them

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def pair(self, behavior: str, target: str) -> PolicyPair:
        """Two of `rollout`, `old`, `current`."""
        return PolicyPair(
            behavior_log_probs=getattr(self, behavior),
            target_log_probs=getattr(self, target),
            lengths=self.lengths,
        )

    def block(self, behavior: str, target: str) -> Block:
        """The same for the statistics."""
        pair = self.pair(behavior, target)
        return Block(
            pair=pair,
            values=TokenValues.of(pair),
            cluster=self.group,
            row=self.row,
            empty={None: self.empty},
            reward=self.reward,
            token_id=np.zeros(self.tokens, np.int32),
            position=np.zeros(self.tokens, np.int64),
        )

    def rows(
        self, behavior: str, target: str, quantities: list[Quantity], *, keep_ratios: bool = False
    ) -> tuple[Tokens, Rows]:
        """Tokens and rows of a pair for the corrections."""
        block = self.block(behavior, target)
        found = rows_of(block, quantities, self.empty, keep_ratios=keep_ratios)
        return Tokens(block.pair.log_ratio), found

    def with_current(self, current: Array) -> ReplayBatch:
        return replace(self, current=current)


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


def joined(chosen: Sequence[Part], names: Sequence[str], advantage: str) -> ReplayBatch:
    """The unmasked tokens of some rows; `names` are the rollout, old and current policies.

    Current log-probs that are not recorded are those of the old policy: the first mini-batch.
    """
    parts = [part.trajectories for part in chosen]
    lengths = np.concatenate([part.sampled_lengths for part in parts])
    filled = lengths > 0

    def tokens(of_part: Callable[[Trajectories], NDArray]) -> Array:
        return np.concatenate([of_part(part)[part.mask] for part in parts])

    def rows(of_part: Callable[[Trajectories], NDArray]) -> NDArray:
        return np.concatenate([of_part(part) for part in parts])[filled]

    reward = rows(lambda part: _known(part.reward, len(part)))
    group = rows(_groups_of_load)
    log_probs = {
        role: tokens(partial(_log_probs, name))
        for role, name in zip(("rollout", "old", "current"), names, strict=True)
    }
    return ReplayBatch(
        step=None,
        **log_probs,
        advantages=_advantages(parts, advantage, reward, group, lengths[filled]),
        lengths=lengths[filled],
        group=group,
        reward=reward,
        row=rows(lambda part: part.first_row + np.arange(len(part))),
        width=int(
            max(
                part.trajectories.response_ids.lengths[part.chosen].max(initial=0)
                for part in chosen
            )
        ),
        empty=int(sum(part.chosen.sum() for part in chosen) - filled.sum()),
    )


def _log_probs(name: str, part: Trajectories) -> Array:
    return part.log_probs[name]


def _known(values: Array | None, count: int) -> Array:
    return np.full(count, np.nan) if values is None else values


def _groups_of_load(part: Trajectories) -> NDArray[np.uint64]:
    if part.group is not None:
        return part.group
    return (part.first_row + np.arange(len(part))).astype(np.uint64)


def _advantages(
    parts: Sequence[Trajectories],
    source: str,
    reward: Array,
    group: NDArray,
    lengths: NDArray[np.int64],
) -> Array:
    """[tokens] by the column, or from rewards and groups."""
    if source != "column":
        return np.repeat(computed_advantages(source, reward, group, lengths), lengths)
    if parts[0].advantages is not None:
        found = np.concatenate([part.advantages[part.mask] for part in parts])  # type: ignore[index]
    else:
        by_row = [part.advantage for part in parts]
        lengths_of = [part.sampled_lengths for part in parts]
        found = np.concatenate(
            [np.repeat(a, n) for a, n in zip(by_row, lengths_of, strict=True) if a is not None]
        )
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
        part = (batch.reward[rows], batch.group[rows], batch.lengths[rows])
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
