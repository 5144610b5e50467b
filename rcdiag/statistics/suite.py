"""The state of the mismatch suite: what one pass over the tokens leaves behind.

States of two shards add up to the state of their union, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rcdiag.statistics.block import Block
from rcdiag.statistics.clusters import ClusterSums, cluster_sums, union
from rcdiag.statistics.pareto import Largest, k_hat, union_of_largest
from rcdiag.statistics.quantiles import Magnitudes, Ordered, Sketch, union_of_magnitudes
from rcdiag.statistics.ranks import RankSample, rank_sample, union_of_samples
from rcdiag.statistics.totals import (
    Addends,
    SequenceTable,
    Totals,
    addends,
    concatenate,
    leave_one_out,
    point,
    resampled,
    sequence_table,
    token_sums,
)

# Of all states of a table together: single values are kept up to so many, then counts.
VALUES_HELD = 1 << 22
RANKS_HELD = 1 << 18


@dataclass
class SuiteState:
    """Everything that the metrics need of the tokens seen so far."""

    table: SequenceTable
    tokens: ClusterSums  # of TOKEN_SUMS
    largest: Largest
    magnitudes: Magnitudes
    ranks: RankSample

    @classmethod
    def of(cls, block: Block) -> SuiteState:
        sums = token_sums(block)
        log_ratio = block.values.ratios.log_ratio
        largest = Largest()
        largest.add(log_ratio)
        return cls(
            sequence_table(block, sums),
            cluster_sums(block.cluster, sums),
            largest,
            Magnitudes.of(np.abs(log_ratio), block.cluster, block.lengths),
            rank_sample(block),
        )


def union_of_states(states: Sequence[SuiteState]) -> SuiteState:
    """The state of all shards together."""
    return SuiteState(
        concatenate([state.table for state in states]),
        union([state.tokens for state in states]),
        union_of_largest([state.largest for state in states]),
        union_of_magnitudes([state.magnitudes for state in states]),
        union_of_samples([state.ranks for state in states]),
    )


def bound_sketches(sketches: Sequence[Sketch]) -> None:
    """Values give way to counts when there are too many in all."""
    if sum(sketch.held for sketch in sketches) > VALUES_HELD:
        for sketch in sketches:
            sketch.collapse()


def bound_memory(states: Sequence[SuiteState]) -> None:
    """Single values give way to counts and samples when there are too many in all."""
    bound_sketches([state.magnitudes.sketch for state in states])
    limit = min((state.ranks.limit for state in states), default=0)
    while sum(state.ranks.below(limit) for state in states) > RANKS_HELD:
        limit //= 2
    for state in states:
        state.ranks = state.ranks.thinned(limit)


@dataclass
class Suite:
    """A state, ready for metrics to be read off; the costly parts are made when first asked for."""

    state: SuiteState
    seed: int

    @cached_property
    def rows(self) -> Addends:
        return addends(self.state.table, self.state.tokens)

    @property
    def clusters(self) -> int:
        return len(self.rows)

    @cached_property
    def point(self) -> Totals:
        return point(self.rows)

    @cached_property
    def replicates(self) -> Totals:
        return resampled(self.rows, self.seed)

    @cached_property
    def left_out(self) -> Totals:
        return leave_one_out(self.rows)

    @cached_property
    def ordered(self) -> Ordered:
        return Ordered.of(self.state.magnitudes.sketch)

    @cached_property
    def k_hat_token(self) -> tuple[float, int]:
        return k_hat(self.state.largest)

    @cached_property
    def k_hat_seq(self) -> tuple[float, int]:
        largest = Largest()
        largest.add(self.state.table.sums["log_ratio"])
        return k_hat(largest)

    @property
    def log_ratio_sum(self) -> float:
        """NaN or infinite if a log-ratio is."""
        return float(self.point.sums["log_ratio"][0])
