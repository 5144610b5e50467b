"""The state of a comparison: the metrics of every ordered pair, figures and joint moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import PairFigure
from rcdiag.statistics.histograms import LOG_PROB_EDGES, log_prob_counts
from rcdiag.statistics.moments import Moments, moments_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import SuiteState
from rcdiag.table.tokens import TokenBatch

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PairData:
    """What figures of one unordered pair are drawn from."""

    log_probs: NDArray[np.int64]  # tokens in the cells of LOG_PROB_EDGES
    profiles: Profiles

    @classmethod
    def of(cls, pair: PolicyPair) -> PairData:
        counts = log_prob_counts(pair.values.behavior, pair.values.target)
        return cls(counts, Profiles.of(pair, ("mean_probability",)))

    def __add__(self, other: PairData) -> PairData:
        return PairData(self.log_probs + other.log_probs, self.profiles + other.profiles)

    def figure(self) -> PairFigure:
        """The counts that are not 0, and the profile, for the result."""
        one, two = np.nonzero(self.log_probs)
        return PairFigure(
            edges=LOG_PROB_EDGES.tolist(),
            cells=np.stack([one, two, self.log_probs[one, two]], axis=1).tolist(),
            by_probability=finished(self.profiles)["mean_probability"],
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """All pairs of some policies, and their joint moments."""

    suites: Mapping[Pair, SuiteState]  # of every ordered pair
    figures: Mapping[Pair, PairData]  # of every unordered pair, in the order of the policies
    moments: Moments

    @classmethod
    def of(cls, batch: TokenBatch, policies: Sequence[str], executor: Executor) -> Comparison:
        """Compare all policies on one batch, which is not empty; pairs are computed in parallel."""
        suites = {
            pair: executor.submit(SuiteState.of, PolicyPair(batch, *pair))
            for pair in permutations(policies, 2)
        }
        figures = {
            (one, two): executor.submit(PairData.of, PolicyPair(batch, one, two))
            for index, one in enumerate(policies)
            for two in policies[index + 1 :]
        }
        return cls(
            {pair: job.result() for pair, job in suites.items()},
            {pair: job.result() for pair, job in figures.items()},
            moments_of(batch),
        )

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            {pair: state + other.suites[pair] for pair, state in self.suites.items()},
            {pair: data + other.figures[pair] for pair, data in self.figures.items()},
            self.moments + other.moments,
        )
