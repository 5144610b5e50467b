"""The unmasked tokens of some rows, with all that the statistics look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array, TokenValues
from rcdiag.table.trajectories import PolicyPair, Trajectories


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Sequences with at least one unmasked token; everything per token is flat and masked."""

    pair: PolicyPair
    values: TokenValues
    cluster: NDArray[np.uint64]  # [sequences] the unit of dependence: sequences of one prompt
    row: NDArray[np.int64]  # [sequences] in the whole table
    empty: Mapping[int | None, int] = field(default_factory=dict)  # step -> rows without a token
    sample_id: Sequence[str | int] | None = None  # [sequences]
    step: NDArray[np.int64] | None = None  # [sequences]
    reward: Array | None = None  # [sequences] NaN = unknown
    advantage: Array | None = None  # [sequences] NaN = unknown
    token_id: NDArray[np.int32]  # [tokens]
    position: NDArray[np.int64]  # [tokens] in the response, masked tokens counted; from 0
    turn: NDArray[np.int64] | None = None  # [tokens] from 1; None where all are 1
    entropy: dict[str, Array] = field(default_factory=dict)  # policy -> [tokens] nats

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.pair.lengths

    def by_step(self) -> dict[int | None, Block]:
        """The parts of each training step, rows without tokens included in their counts."""
        if self.step is None:
            return {None: self}
        steps = {*np.unique(self.step).tolist(), *self.empty}
        return {step: self.of_step(step) for step in sorted(steps) if step is not None}

    def of_step(self, step: int) -> Block:
        """The part of one training step."""
        assert self.step is not None
        keep = self.step == step
        if keep.all() and set(self.empty) <= {step}:
            return self
        tokens = np.repeat(keep, self.lengths)
        pair = PolicyPair(
            behavior_log_probs=self.pair.behavior_log_probs[tokens],
            target_log_probs=self.pair.target_log_probs[tokens],
            lengths=self.lengths[keep],
        )
        return Block(
            pair=pair,
            values=TokenValues.of(pair),
            cluster=self.cluster[keep],
            row=self.row[keep],
            empty={step: self.empty.get(step, 0)},
            sample_id=_kept(self.sample_id, keep),
            step=self.step[keep],
            reward=None if self.reward is None else self.reward[keep],
            advantage=None if self.advantage is None else self.advantage[keep],
            token_id=self.token_id[tokens],
            position=self.position[tokens],
            turn=None if self.turn is None else self.turn[tokens],
            entropy={name: values[tokens] for name, values in self.entropy.items()},
        )


def block_of(trajectories: Trajectories, behavior: str, target: str) -> Block:
    """What two policies' statistics need of some rows: the mask is applied here, and only here."""
    pair = trajectories.pair(behavior, target)
    lengths = trajectories.response_ids.lengths
    filled = pair.lengths > 0
    pair = PolicyPair(
        behavior_log_probs=pair.behavior_log_probs,
        target_log_probs=pair.target_log_probs,
        lengths=pair.lengths[filled],
    )
    rows = trajectories.first_row + np.arange(len(trajectories))
    group = rows.astype(np.uint64) if trajectories.group is None else trajectories.group
    mask = trajectories.mask
    position = np.arange(len(mask)) - np.repeat(trajectories.response_ids.offsets[:-1], lengths)

    def kept(values: NDArray | None) -> NDArray | None:
        return None if values is None else values[filled]

    return Block(
        pair=pair,
        values=TokenValues.of(pair),
        cluster=group[filled],
        row=rows[filled],
        empty=_count_empty(filled, trajectories.step),
        sample_id=_kept(trajectories.sample_id, filled),
        step=kept(trajectories.step),
        reward=kept(trajectories.reward),
        advantage=kept(trajectories.advantage),
        token_id=trajectories.response_ids.values[mask],
        position=position[mask],
        turn=_turns(mask, position),
        entropy={name: values[mask] for name, values in trajectories.entropy.items()},
    )


def _count_empty(
    filled: NDArray[np.bool_], step: NDArray[np.int64] | None
) -> dict[int | None, int]:
    if step is None:
        return {None: int((~filled).sum())}
    steps, counts = np.unique(step[~filled], return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def _kept(ids: Sequence[str | int] | None, keep: NDArray[np.bool_]) -> list[str | int] | None:
    return None if ids is None else [ids[index] for index in np.flatnonzero(keep)]


def _turns(mask: NDArray[np.bool_], position: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Turn of each unmasked token: how many runs of unmasked tokens its row has had, from 1."""
    if mask.all():
        return None
    begins = mask & ((position == 0) | ~np.concatenate([[False], mask[:-1]]))
    runs = np.cumsum(begins)
    # Runs of earlier rows, as counted just before each row's first token.
    first = np.flatnonzero(position == 0)
    before = (runs - begins)[first]
    lengths = np.diff(np.append(first, len(mask)))
    return (runs - np.repeat(before, lengths))[mask]
