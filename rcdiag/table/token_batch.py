"""TokenBatch: the sampled tokens of some sequences, the only input of all statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.table.trajectories import Trajectories

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class RowFrame(Struct, frozen=True):
    """Rows of a table as arrays with one entry per row; consecutive parts can be concatenated."""


class TokenBatch(RowFrame, frozen=True, kw_only=True):
    """Sequences with at least one sampled token; arrays per token are flat and masked.

    It holds no padding and no prompt, tool or template tokens. Any two of its policies are a pair.
    """

    log_probs: Mapping[str, Array]  # policy -> [tokens] nats
    lengths: NDArray[np.int64]  # [sequences] sampled tokens, at least 1
    cluster: NDArray[np.uint64]  # [sequences] unit of dependence: sequences of the same prompt
    row: NDArray[np.int64]  # [sequences] row number within the whole table
    token_id: NDArray[np.int32]  # [tokens]
    position: NDArray[np.int64]  # [tokens] index in the response, counting masked tokens, from 0
    turn: NDArray[np.int64] | None = None  # [tokens] counted from 1; None if all are 1
    entropy: Mapping[str, Array] = field(default_factory=dict)  # policy -> [tokens] nats
    sample_id: Sequence[str | int] | None = None  # [sequences]
    step: NDArray[np.int64] | None = None  # [sequences]
    reward: Array | None = None  # [sequences] NaN = unknown
    advantage: Array | None = None  # [sequences] NaN = unknown
    advantages: Array | None = None  # [tokens]
    engine: NDArray[np.str_] | None = None  # [sequences] replica of the sampler
    version: NDArray[np.int64] | None = None  # [tokens] version of the sampling weights; -1 unknown
    empty: Mapping[int | None, int] = field(default_factory=dict)  # step -> rows without a token
    width: int = 0  # tokens of the longest response, including masked tokens
    # The masked response tokens; None if there are none or they were not requested.
    masked: TokenBatch | None = None

    @property
    def owner(self) -> NDArray[np.int64]:
        """Return the index of each token's sequence, [tokens]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def rewards(self) -> Array:
        """Return the reward of each sequence, NaN if unknown; [sequences]."""
        return np.full(len(self.lengths), np.nan) if self.reward is None else self.reward

    def take(self, keep: Flags, empty: Mapping[int | None, int]) -> TokenBatch:
        """Return the sequences where `keep` [sequences] is true, with a new `empty`.

        Of the masked tokens, those of removed sequences are removed too.
        """
        masked = None if self.masked is None else self.masked.without_rows(self.row[~keep])
        kept = np.flatnonzero(keep)
        if len(kept) and kept[-1] - kept[0] == len(kept) - 1:  # contiguous: slice without copying
            rows = slice(int(kept[0]), int(kept[-1]) + 1)
            first = int(self.lengths[: rows.start].sum())
            tokens = slice(first, first + int(self.lengths[rows].sum()))
            return self._part(rows, tokens, empty, masked)
        return self._part(keep, np.repeat(keep, self.lengths), empty, masked)

    def _part(
        self,
        rows: slice | Flags,
        tokens: slice | Flags,
        empty: Mapping[int | None, int],
        masked: TokenBatch | None,
    ) -> TokenBatch:
        """Return some sequences and their tokens; slices do not copy."""
        return replace(
            self,
            log_probs={name: values[tokens] for name, values in self.log_probs.items()},
            lengths=self.lengths[rows],
            cluster=self.cluster[rows],
            row=self.row[rows],
            token_id=self.token_id[tokens],
            position=self.position[tokens],
            turn=_at(self.turn, tokens),
            entropy={name: values[tokens] for name, values in self.entropy.items()},
            sample_id=_chosen(self.sample_id, rows),
            step=_at(self.step, rows),
            reward=_at(self.reward, rows),
            advantage=_at(self.advantage, rows),
            advantages=_at(self.advantages, tokens),
            engine=_at(self.engine, rows),
            version=_at(self.version, tokens),
            empty=empty,
            masked=masked,
        )

    def without_rows(self, rows: NDArray[np.int64]) -> TokenBatch:
        """Return the batch without the sequences of some rows of the table."""
        return self.take(~np.isin(self.row, rows), self.empty)

    def blocks(self, tokens: int) -> list[TokenBatch]:
        """Cut the batch into blocks of whole sequences with about `tokens` tokens, without copying.

        A block ends with the sequence that reaches that number. The counts of rows without a token
        and the masked tokens of these rows go to the first block.
        """
        ends = np.cumsum(self.lengths)
        if not len(ends) or ends[-1] <= tokens:
            return [self]
        marks = np.arange(tokens, int(ends[-1]) + tokens, tokens)
        cuts = np.unique(np.searchsorted(ends, marks, side="left") + 1).clip(max=len(ends))
        edges = np.unique(np.concatenate([[0], cuts])).tolist()
        starts = np.concatenate([[0], ends])
        return [
            self._part(
                slice(first, last),
                slice(int(starts[first]), int(starts[last])),
                self.empty if first == 0 else {},
                self._masked_of(first, last),
            )
            for first, last in pairwise(edges)
        ]

    def _masked_of(self, first: int, last: int) -> TokenBatch | None:
        """Return the masked tokens of some sequences, with the first those of all `empty` rows."""
        if self.masked is None:
            return None
        rows = self.masked.row
        keep = np.isin(rows, self.row[first:last])
        return self.masked.take(keep if first else keep | ~np.isin(rows, self.row), {})

    def by_step(self) -> dict[int | None, TokenBatch]:
        """Return the part of each training step, with the step's rows without a token."""
        if self.step is None:
            return {None: self}
        steps = {*np.unique(self.step).tolist(), *self.empty}
        return {step: self.of_step(step) for step in sorted(steps) if step is not None}

    def of_step(self, step: int) -> TokenBatch:
        """Return the part of one training step."""
        assert self.step is not None
        keep = self.step == step
        if keep.all() and set(self.empty) <= {step}:
            return self
        part = self.take(keep, {step: self.empty.get(step, 0)})
        return replace(part, masked=None if self.masked is None else self.masked.of_step(step))


def sampled_tokens(
    trajectories: Trajectories, policies: Sequence[str], *, masked: bool = False
) -> TokenBatch:
    """Return the sampled tokens of rows, with log-probs of `policies`; applies the response mask.

    If `masked`, the batch also holds the response tokens that the mask leaves out.
    """
    everything = bool(trajectories.mask.all())
    if masked and not everything:
        rest = sampled_tokens(dataclasses.replace(trajectories, mask=~trajectories.mask), policies)
        return replace(sampled_tokens(trajectories, policies), masked=rest)
    ids = trajectories.response_ids
    mask, counts = trajectories.mask, ids.lengths if everything else trajectories.sampled_lengths
    filled = counts > 0
    rows = trajectories.row
    position = np.arange(len(mask))
    position -= np.repeat(ids.offsets[:-1], ids.lengths)
    keep = slice(None) if everything else mask  # a slice does not copy
    engine = trajectories.engine

    empty: dict[int | None, int] = {None: int((~filled).sum())}  # rows without a sampled token
    if trajectories.step is not None:
        steps, times = np.unique(trajectories.step[~filled], return_counts=True)
        empty = dict(zip(steps.tolist(), times.tolist(), strict=True))

    versions = trajectories.policy_version  # per row or per token
    if versions is not None:
        by_row = len(versions) == len(trajectories)
        versions = (np.repeat(versions, ids.lengths) if by_row else versions)[keep]

    return TokenBatch(
        log_probs={name: trajectories.log_probs[name][keep] for name in policies},
        lengths=counts[filled],
        cluster=trajectories.groups[filled],
        row=rows[filled],
        token_id=ids.values[keep],
        position=position[keep],
        turn=None if everything else _turns(mask, position),
        entropy={name: values[keep] for name, values in trajectories.entropy.items()},
        sample_id=_chosen(trajectories.sample_id, filled),
        step=_at(trajectories.step, filled),
        reward=_at(trajectories.reward, filled),
        advantage=_at(trajectories.advantage, filled),
        advantages=_at(trajectories.advantages, keep),
        engine=None if engine is None else np.array(engine, dtype=np.str_)[filled],
        version=versions,
        empty=empty,
        width=int(ids.lengths.max(initial=0)),
    )


def _at(values: NDArray[Any] | None, keep: slice | Flags) -> NDArray[Any] | None:
    """Return some values of a column; None if there is no column."""
    return None if values is None else values[keep]


def _chosen(ids: Sequence[str | int] | None, keep: slice | Flags) -> list[str | int] | None:
    if isinstance(keep, slice):
        return None if ids is None else list(ids[keep])
    return None if ids is None else [ids[index] for index in np.flatnonzero(keep)]


def _turns(mask: Flags, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each sampled token's turn [tokens]: its run of sampled tokens, counted from 1."""
    begins = mask & ((position == 0) | ~np.concatenate([[False], mask[:-1]]))
    runs = np.cumsum(begins)
    # Number of runs in all rows before, at each row's first token.
    first = np.flatnonzero(position == 0)
    before = (runs - begins)[first]
    lengths = np.diff(np.append(first, len(mask)))
    turns: NDArray[np.int64] = (runs - np.repeat(before, lengths))[mask]
    return turns
