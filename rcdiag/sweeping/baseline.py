"""What stands in for advantages where none are recorded: reward less a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.block import Block

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Mean reward of each prompt group, or of all where no group has two rewards."""

    keys: NDArray[np.uint64]  # [groups] ascending
    means: Array  # [groups]
    overall: float

    @classmethod
    def of(cls, group: NDArray[np.uint64] | None, reward: Array) -> Baseline:
        known = ~np.isnan(reward)
        if not known.any():
            return cls(np.empty(0, np.uint64), np.empty(0), np.nan)
        overall = float(reward[known].mean())
        if group is None:
            return cls(np.empty(0, np.uint64), np.empty(0), overall)
        keys, index, sizes = np.unique(group[known], return_inverse=True, return_counts=True)
        if sizes.max() < 2:
            return cls(np.empty(0, np.uint64), np.empty(0), overall)
        return cls(keys, np.bincount(index, reward[known]) / sizes, overall)

    @property
    def kind(self) -> str:
        """What is taken off the reward, in words."""
        return "the mean of its prompt group" if len(self.keys) else "the mean of all"

    def advantage(self, block: Block) -> Array:
        """Reward less its baseline, [sequences]; NaN where the reward is unknown."""
        if block.reward is None:
            return np.full(len(block.lengths), np.nan)
        if not len(self.keys):
            return block.reward - self.overall
        at = np.minimum(np.searchsorted(self.keys, block.cluster), len(self.keys) - 1)
        found = self.keys[at] == block.cluster
        return block.reward - np.where(found, self.means[at], np.nan)


def recorded_advantage(block: Block) -> Array:
    """The advantage of the table, [sequences]; NaN where it has none."""
    if block.advantage is None:
        return np.full(len(block.lengths), np.nan)
    return block.advantage


def advantages(block: Block, baseline: Baseline | None) -> Array:
    """What a sequence's gradient is multiplied by: recorded advantages, else the baseline's."""
    if block.advantage is not None:
        return block.advantage
    if baseline is None:
        return np.full(len(block.lengths), np.nan)
    return baseline.advantage(block)
