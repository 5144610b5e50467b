"""The suite from which metrics are computed, and its state for a pair of policies.

States of parts merge into the state of all their rows, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.merging import merge_fields
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import LIKELY_END, UpperTail, k_hat, squares_beyond
from rcdiag.statistics.quantiles import (
    Magnitudes,
    Ordered,
    SharesBelow,
    Sketch,
    bounded_sketches,
    coarse_counts,
)
from rcdiag.statistics.ranks import RankSample, rank_sample
from rcdiag.statistics.ratios import TOKEN_MAXIMA, Array
from rcdiag.statistics.rounding import ASSUMED, RoundingNoise
from rcdiag.statistics.totals import (
    Addends,
    SequenceTable,
    Totals,
    addends,
    sequence_table,
    token_sums,
)

# States of a table together keep the ranks of at most this many tokens; above that, of a sample.
RANKS_HELD = 1 << 18

K = TypeVar("K")


class SuiteState(Struct, frozen=True):
    """Everything that the metrics need about some tokens."""

    table: SequenceTable
    maxima: Mapping[str, float]  # of TOKEN_MAXIMA
    tokens: ClusterSums  # of TOKEN_SUMS
    tail: UpperTail  # of token log-ratios
    magnitudes: Magnitudes
    ranks: RankSample

    @classmethod
    def of(cls, pair: PolicyPair) -> SuiteState:
        sums, size = token_sums(pair), pair.values.ratios.size
        cluster, coarse = pair.tokens.cluster, coarse_counts(size, pair.lengths)
        return cls(
            sequence_table(pair, sums),
            {
                name: float(of(pair.values).max(initial=-np.inf))
                for name, of in TOKEN_MAXIMA.items()
            },
            cluster_sums(cluster, sums),
            UpperTail.of(pair.log_ratio),
            Magnitudes(Sketch((size,)), cluster_sums(cluster, coarse)),
            rank_sample(pair),
        ).bounded()

    @classmethod
    def merged(cls, parts: Sequence[SuiteState]) -> SuiteState:
        # NaN if any of them is NaN, in any order.
        maxima = np.max([list(part.maxima.values()) for part in parts], axis=0).tolist()
        return merge_fields(parts, maxima=dict(zip(TOKEN_MAXIMA, maxima, strict=True)))

    def bounded(self) -> SuiteState:
        """Return the state with single values replaced by counts if there are too many."""
        return bounded({None: self})[None]


def bounded(states: Mapping[K, SuiteState]) -> dict[K, SuiteState]:
    """Replace single values of states that are kept together by counts, if there are too many."""
    sketches = bounded_sketches([state.magnitudes.sketch for state in states.values()])
    limit = min((state.ranks.limit for state in states.values()), default=0)
    while sum(state.ranks.below(limit) for state in states.values()) > RANKS_HELD:
        limit //= 2

    return {
        key: replace(
            state,
            magnitudes=replace(state.magnitudes, sketch=sketch),
            ranks=state.ranks.thinned(limit),
        )
        for (key, state), sketch in zip(states.items(), sketches, strict=True)
    }


class Suite(Struct, dict=True):
    """A state from which metrics are computed; costly parts are computed on first use."""

    state: SuiteState
    rounding: RoundingNoise = ASSUMED

    @cached_property
    def rows(self) -> Addends:
        return addends(self.state.table, self.state.tokens).by_content()

    @property
    def clusters(self) -> int:
        return len(self.rows)

    @cached_property
    def point(self) -> Totals:
        return self.rows.totals(self.rows.matrix.sum(axis=0)[None])

    def sizes(self, level: str) -> Array:
        """Return the tokens or sequences of each cluster, [clusters]."""
        return self.rows.column("sequences" if level == "seq" else "tokens")

    @cached_property
    def left_out(self) -> Totals:
        """Return the totals with each cluster left out in turn, [clusters], for the jackknife."""
        with np.errstate(invalid="ignore"):
            return self.rows.totals(self.rows.matrix.sum(axis=0) - self.rows.matrix)

    @cached_property
    def ordered(self) -> Ordered:
        return Ordered.of(self.state.magnitudes.sketch)

    @cached_property
    def shares_below(self) -> SharesBelow:
        return SharesBelow.of(self.state.magnitudes.clusters)

    @cached_property
    def k_hat_token(self) -> tuple[float, int]:
        return k_hat(self.state.tail)

    @cached_property
    def k_hat_seq(self) -> tuple[float, int]:
        return k_hat(UpperTail.of(self.state.table.sums["log_ratio"]))

    @cached_property
    def squares_beyond(self) -> float:
        return squares_beyond(self.state.tail)

    @cached_property
    def likely_squares_beyond(self) -> float:
        return squares_beyond(self.state.tail, LIKELY_END)

    @property
    def log_ratio_sum(self) -> float:
        """Return the total log_ratio; NaN or infinite if any log_ratio is."""
        return float(self.point.sums["log_ratio"][0])
