"""What stands in for advantages where none are recorded: reward less a baseline.

A small stand-in for each sequence's policy gradient, without a model.

The gradient of log p(token) with respect to the logits has 1 - p at the sampled token. Summed over
a sequence by token id with signs into DIMENSIONS buckets (CountSketch: inner products stay what
they are in expectation), that is a vector whose inner products follow those of the gradients of
the output bias. Sources: reference/theory.md 2.7 and 4.3, L-proxy; Charikar et al. 2002.

Sketches of weighted gradients by cluster, for every candidate and for the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import quantities_of
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import SAFETY_BOUND, K, LogRatio, Quantity, Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.statistics.block import Block
from rcdiag.statistics.pareto import Largest, union_of_largest
from rcdiag.table.segments import segment_sum
from rcdiag.usecases.sweep.candidates import final_weights
from rcdiag.usecases.sweep.keyed import Array, Keyed


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


DIMENSIONS = 64
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Fibonacci hashing


def buckets(token_id: NDArray[np.int32]) -> tuple[NDArray[np.int64], Array]:
    """Bucket and sign of each token id."""
    mixed = (token_id.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
    bucket = (mixed >> np.uint64(58)).astype(np.int64)
    sign = 1.0 - 2.0 * ((mixed >> np.uint64(40)) & np.uint64(1)).astype(np.float64)
    return bucket, sign


def sketches(cells: NDArray[np.int64], values: Array, rows: int) -> Array:
    """Sums of `values` [tokens] by sequence and bucket, [sequences, DIMENSIONS].

    `cells` are sequence * DIMENSIONS + bucket.
    """
    sums = np.bincount(cells, values, rows * DIMENSIONS).astype(np.float64, copy=False)
    return sums.reshape(rows, DIMENSIONS)


def reference_ratio(log_ratio: Array, lengths: NDArray[np.int64]) -> Array:
    """Ratio of whole sequences, the untruncated importance weight, its log within +-20 nats."""
    return np.exp(np.clip(segment_sum(log_ratio, lengths), -SAFETY_BOUND, SAFETY_BOUND))


REFERENCE = "reference"


@dataclass
class Gradients:
    """The tails of weight times |advantage|; the sums themselves are held with the clusters."""

    tails: dict[str, Largest] = field(default_factory=dict)

    def add(
        self,
        block: Block,
        plans: Mapping[str, Correction],
        baseline: Baseline | None,
        keyed: Keyed,
    ) -> None:
        """Take in the sequences of a block; sums by cluster go to `keyed`."""
        if not plans:
            return
        advantage = advantages(block, baseline)
        signal = np.nan_to_num(advantage, nan=0.0)
        size = np.where(np.isnan(advantage), 1.0, np.abs(advantage))
        bucket, sign = buckets(block.token_id)
        owner = np.repeat(np.arange(len(block.lengths)), block.lengths)
        cells = owner * DIMENSIONS + bucket
        slope = sign * block.values.target_miss * np.repeat(signal, block.lengths)
        log_ratio = block.values.ratios.log_ratio
        tokens, rows = Tokens(log_ratio), rows_of(block, _quantities(plans.values()), 0)
        true = np.exp(segment_sum(log_ratio, block.lengths))
        keys, index = keyed.place(block.cluster)

        def add_up(name: str, column: str, values: Array) -> None:
            sums = np.zeros((len(keys), *values.shape[1:]))
            np.add.at(sums, index, values)
            keyed.add(keys, (name, column), sums)

        plain = sketches(cells, slope, len(rows))
        reference = reference_ratio(log_ratio, block.lengths)
        add_up(REFERENCE, "gradient", plain * reference[:, None])
        add_up(REFERENCE, "signals", (~np.isnan(advantage)).astype(np.float64))
        for name, correction in plans.items():
            weights = final_weights(correction, tokens, rows)
            means = segment_sum(weights, block.lengths) / block.lengths
            add_up(name, "gradient", sketches(cells, slope * weights, len(rows)))
            add_up(name, "over", np.maximum(means - true, 0.0))
            self._add_tail(name, means * size)

    def _add_tail(self, name: str, sizes: Array) -> None:
        self.tails.setdefault(name, Largest()).add(np.log(sizes[sizes > 0.0]))

    def merge(self, other: Gradients) -> None:
        for name, tail in other.tails.items():
            mine = self.tails.get(name)
            self.tails[name] = tail if mine is None else union_of_largest([mine, tail])


def _quantities(corrections: Iterable[Correction]) -> list[Quantity]:
    found: dict[Quantity, None] = dict.fromkeys([LogRatio(), K("k2"), K("k3")])
    for correction in corrections:
        found |= dict.fromkeys(quantities_of(correction))
    return list(found)
