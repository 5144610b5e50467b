"""The batch of one update: what trainers hold padded, flat."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.quantities import Quantity, Tokens
from rcdiag.corrections.rows import Rows, rows_of
from rcdiag.pair import PolicyPair
from rcdiag.statistics.block import Block
from rcdiag.statistics.tokens import TokenValues

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
