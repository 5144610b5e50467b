"""The batch of one update: the sampled tokens of one training step, flat, without padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.learning.learner import Parts
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.merging import merge, merge_fields
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.rounding import ASSUMED, RoundingNoise, rounding_of
from rcdiag.table.stream import read_trajectories
from rcdiag.table.survey import known_steps
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Trajectories, segment_sum
from rcdiag.usecases.diagnosed import scored_policies
from rcdiag.usecases.passes import no_tokens
from rcdiag.usecases.replay.token_advantages import (
    COLUMN,
    advantages_from_rewards,
    recorded_advantages,
)

if TYPE_CHECKING:
    from rcdiag.learning.trainee import TokenScores

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Roles(Struct, frozen=True, kw_only=True):
    """Which recorded policies are the sampler, the trainer before the update, and during it."""

    rollout: str = "rollout"
    old: str = "old"
    current: str | None = None  # None: the old policy, as in the first mini-batch

    @property
    def names(self) -> tuple[str, str, str]:
        """Return the names of the rollout, old and current policies in the table."""
        return self.rollout, self.old, self.current or self.old


class ReplayBatch(Struct, frozen=True, kw_only=True):
    """The sampled tokens of one update, and the rows that they are read from.

    The policies of `tokens` are `rollout`, `old` and `current`; its `advantages` are those of the
    update. Its `width` and `empty` rows are those of the training step, since some trainers count
    them in denominators.
    """

    step: int | None
    tokens: TokenBatch
    parts: Parts  # the rows as a model reads them; tokens of rows outside the update are masked
    non_finite: NonFinite  # under the table's names of the policies
    scored_roles: frozenset[str] = frozenset()  # roles whose log-probs an engine computed
    rounding: RoundingNoise = ASSUMED  # of `rollout` against `old`

    @property
    def rollout(self) -> Array:
        """Return log-probs under the policy that sampled, nats, [tokens]."""
        return self.tokens.log_probs["rollout"]

    @property
    def old(self) -> Array:
        """Return log-probs under the trainer's policy before the update, nats, [tokens]."""
        return self.tokens.log_probs["old"]

    @property
    def current(self) -> Array:
        """Return log-probs under the policy that is updated, nats, [tokens]."""
        return self.tokens.log_probs["current"]

    @property
    def advantages(self) -> Array:
        """Return the advantages that the update uses, [tokens]."""
        assert self.tokens.advantages is not None
        return self.tokens.advantages

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of sampled tokens of each sequence, [sequences]."""
        return self.tokens.lengths

    @property
    def group(self) -> NDArray[np.uint64]:
        """Return the prompt group of each sequence, [sequences]."""
        return self.tokens.cluster

    @property
    def num_tokens(self) -> int:
        """Return the number of sampled tokens of all sequences."""
        return len(self.tokens.token_id)

    @property
    def empty(self) -> int:
        """Return the number of rows without a sampled token."""
        return sum(self.tokens.empty.values())

    def pair(self, behavior: str, target: str) -> PolicyPair:
        """Return two of `rollout`, `old` and `current` on the tokens of the batch."""
        return PolicyPair(self.tokens, behavior, target)

    def k3_by_row(self, behavior: Array, target: Array) -> Array:
        """Return the sum of k3 = ratio - 1 - log_ratio, nats, and the tokens, [sequences, 2].
        `behavior` and `target` are log-probs [tokens]; log_ratio is target minus behavior.
        """
        log_ratio = target - behavior
        with np.errstate(over="ignore"):
            values = np.expm1(log_ratio) - log_ratio
        return np.stack([segment_sum(values, self.lengths), self.lengths.astype(float)], axis=1)

    def scored(self, scores: TokenScores) -> ReplayBatch:
        """Return the batch with a model's log-probs as `old` and `current` ones."""
        entropy = {} if scores.entropy is None else {"old": scores.entropy}
        log_probs = {"rollout": self.rollout, "old": scores.log_probs, "current": scores.log_probs}
        return replace(
            self,
            tokens=replace(self.tokens, log_probs=log_probs, entropy=entropy),
            scored_roles=self.scored_roles | {"old", "current"},
        )

    def with_current(self, log_probs: Array) -> ReplayBatch:
        """Return the batch with other `current` log-probs [tokens], as later in an update."""
        policies = {**self.tokens.log_probs, "current": log_probs}
        return replace(
            self,
            tokens=replace(self.tokens, log_probs=policies),
            scored_roles=self.scored_roles | {"current"},
        )

    def with_advantages(self, advantages: Array) -> ReplayBatch:
        """Return the batch with other advantages [tokens]."""
        return replace(self, tokens=replace(self.tokens, advantages=advantages))

    def take(self, rows: NDArray[np.int64]) -> ReplayBatch:
        """Return some sequences; rows without a token count only in the whole batch."""
        keep = np.isin(np.arange(len(self.lengths)), rows)
        if keep.all():
            return self
        ends = np.cumsum([int((part.sampled_lengths > 0).sum()) for part in self.parts])
        parts = []
        for part, flags in zip(self.parts, np.split(keep, ends[:-1]), strict=True):
            rows_kept = part.sampled_lengths > 0
            rows_kept[rows_kept] = flags
            parts.append(_masked(part, rows_kept))
        return replace(self, tokens=self.tokens.take(keep, {}), parts=parts)


def read_batch(
    dump: Table, roles: Roles, step: int | None, advantage: str, *, prompts: bool = False
) -> ReplayBatch:
    """Read the rows of training step `step`, by default the last one, or all without steps."""
    steps = known_steps(dump)
    chosen = steps[-1] if step is None and steps else step
    if chosen is not None and chosen not in steps:
        listed = ", ".join(map(str, steps))
        raise RcdiagError(
            f"{dump.name}: no step {step}",
            hint=f"there are {listed}" if listed else "the table has no column `step`",
        )
    names = tuple(dict.fromkeys(roles.names))
    parts = [
        _masked(part, rows_of_step(part, chosen))
        for part in read_trajectories(dump, names, prompts=prompts)
        if rows_of_step(part, chosen).any()
    ]
    if not any(part.mask.any() for part in parts):
        if not dump.null_rows.keys().isdisjoint(names):
            raise no_tokens(dump, names)
        raise RcdiagError(
            f"{dump.name}: no unmasked response token to learn from",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    batch = replay_batch(parts, roles, advantage, chosen, scored_policies(dump))
    about = dump.metadata.get("policies", {})
    return replace(batch, rounding=rounding_of(about, roles.rollout, roles.old))


def replay_batch(
    parts: Sequence[Trajectories],
    roles: Roles,
    advantage: str,
    step: int | None = None,
    scored: Collection[str] = (),
) -> ReplayBatch:
    """Return the batch of the rows of `step`; the tokens of all other rows must be masked.

    Without recorded `current` log-probs these are the old ones, as in the first mini-batch.
    `scored` are the policies whose log-probs an engine computed.
    """
    names = tuple(dict.fromkeys(roles.names))
    tokens = joined_batches([sampled_tokens(part, names) for part in parts])
    by_role = tuple(zip(("rollout", "old", "current"), roles.names, strict=True))
    empty: Mapping[int | None, int] = tokens.empty
    if step is not None:
        empty = {step: tokens.empty.get(step, 0)}
    rows = [rows_of_step(part, step) for part in parts]
    widths = [
        part.response_ids.lengths[chosen].max(initial=0)
        for part, chosen in zip(parts, rows, strict=True)
    ]
    return ReplayBatch(
        step=step,
        tokens=replace(
            tokens,
            log_probs={role: tokens.log_probs[name] for role, name in by_role},
            entropy={},
            advantages=recorded_advantages(tokens)
            if advantage == COLUMN
            else advantages_from_rewards(advantage, parts, rows),
            empty=empty,
            width=int(max(widths)),
        ),
        parts=parts,
        non_finite=NonFinite.of(tokens),
        scored_roles=frozenset(role for role, name in by_role if name in scored),
    )


def joined_batches(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Join the sequences of batches, in order; all have the same columns and policies."""
    turn = None  # stays None if every token is in turn 1
    if any(batch.turn is not None for batch in batches):
        turns = [
            np.ones(len(batch.token_id), np.int64) if batch.turn is None else batch.turn
            for batch in batches
        ]
        turn = np.concatenate(turns)
    return merge_fields(
        batches,
        turn=turn,
        empty=merge([batch.empty for batch in batches]),
        width=max(batch.width for batch in batches),
    )


def rows_of_step(part: Trajectories, step: int | None) -> Flags:
    """Flag the rows of a training step, [rows]; all rows if there are no steps."""
    if step is None or part.step is None:
        return np.ones(len(part), np.bool_)
    result: Flags = part.step == step
    return result


def _masked(part: Trajectories, rows: Flags) -> Trajectories:
    """Return the part with the tokens of all rows masked that `rows` [rows] does not flag."""
    if rows.all():
        return part
    return dataclasses.replace(part, mask=part.mask & np.repeat(rows, part.response_ids.lengths))
