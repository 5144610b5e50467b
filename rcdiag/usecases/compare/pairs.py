"""The mismatch suite of every ordered pair of policies, over one pass."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import PairFigure
from rcdiag.statistics.block import Block, block_of
from rcdiag.statistics.histograms import LOG_PROB_EDGES, log_prob_counts
from rcdiag.statistics.moments import Moments, moments_of, union_of_moments
from rcdiag.statistics.profiles import Profiles, finished, union_of_profiles
from rcdiag.statistics.suite import SuiteState, bound_memory, union_of_states
from rcdiag.table.trajectories import Trajectories

WAITING = 16

Pair = tuple[str, str]


@dataclass
class PairState:
    """What is kept of one ordered pair."""

    suites: list[SuiteState] = field(default_factory=list)
    log_probs: NDArray[np.int64] | int = 0
    profiles: list[Profiles] = field(default_factory=list)

    def add(self, block: Block, *, figures: bool) -> None:
        self.suites.append(SuiteState.of(block))
        if len(self.suites) >= WAITING:
            self.suites[:] = [union_of_states(self.suites)]
        bound_memory(self.suites)
        if figures:
            values = block.values
            self.log_probs = self.log_probs + log_prob_counts(values.behavior, values.target)
            self.profiles.append(Profiles.of(block, ("mean_probability",)))

    def merge(self, other: PairState) -> None:
        self.suites += other.suites
        self.log_probs = self.log_probs + other.log_probs
        self.profiles += other.profiles

    def suite(self) -> SuiteState:
        return union_of_states(self.suites)

    def figure(self) -> PairFigure:
        counts = np.asarray(self.log_probs)
        one, other = np.nonzero(counts)
        profile = finished(union_of_profiles(self.profiles))["mean_probability"]
        return PairFigure(
            edges=LOG_PROB_EDGES.tolist(),
            cells=np.stack([one, other, counts[one, other]], axis=1).tolist(),
            by_probability=profile,
        )


@dataclass
class Comparison:
    """All pairs of some policies, and their joint moments; mergeable."""

    policies: tuple[str, ...]
    pairs: dict[Pair, PairState] = field(default_factory=dict)
    moments: list[Moments] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pairs = {pair: PairState() for pair in permutations(self.policies, 2)}

    def once(self) -> Sequence[Pair]:
        """Every unordered pair, in the order of the policies."""
        place = self.policies.index
        return [(a, b) for a, b in self.pairs if place(a) < place(b)]

    def add(self, trajectories: Trajectories, executor: Executor) -> None:
        """Take in some rows; pairs are computed side by side."""
        if not trajectories.mask.any():
            return
        jobs = [executor.submit(self._add_pair, pair, trajectories) for pair in self.pairs]
        self.moments.append(moments_of(trajectories, self.policies))
        if len(self.moments) >= WAITING:
            self.moments[:] = [union_of_moments(self.moments)]
        for job in jobs:
            job.result()

    def _add_pair(self, pair: Pair, trajectories: Trajectories) -> None:
        block = block_of(trajectories, *pair)
        self.pairs[pair].add(block, figures=pair in self.once())

    def merge(self, other: Comparison) -> None:
        """Take in what a pass over other rows of the same table left."""
        for pair, state in other.pairs.items():
            self.pairs[pair].merge(state)
        self.moments += other.moments
