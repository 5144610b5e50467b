"""The state of a comparison: the metrics of every ordered pair, figures and joint moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import permutations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.results import PairFigure
from rcdiag.statistics.histograms import LOG_PROB_EDGES, log_prob_counts
from rcdiag.statistics.moments import Moments, moments_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import SuiteState
from rcdiag.statistics.weighted import WeightedState
from rcdiag.table.token_batch import TokenBatch

Pair = tuple[str, str]


class PairData(Struct, frozen=True):
    """What figures of one unordered pair are drawn from."""

    log_probs: NDArray[np.int64]  # tokens in the cells of LOG_PROB_EDGES
    profiles: Profiles

    @classmethod
    def of(cls, pair: PolicyPair) -> PairData:
        counts = log_prob_counts(pair.values.behavior, pair.values.target)
        return cls(counts, Profiles.of(pair, ("mean_probability",)))

    def figure(self) -> PairFigure:
        """The counts that are not 0, and the profile, for the result."""
        one, two = np.nonzero(self.log_probs)
        return PairFigure(
            edges=LOG_PROB_EDGES.tolist(),
            cells=np.stack([one, two, self.log_probs[one, two]], axis=1).tolist(),
            by_probability=finished(self.profiles)["mean_probability"],
        )


class Comparison(Struct, frozen=True):
    """All pairs of some policies, and their joint moments."""

    suites: Mapping[Pair, SuiteState]  # of every ordered pair
    # Of ordered pairs whose behavior policy did not sample, where the sampler is compared too.
    weighted: Mapping[Pair, WeightedState]
    figures: Mapping[Pair, PairData]  # of every unordered pair, in the order of the policies
    moments: Moments

    @classmethod
    def of(
        cls, batch: TokenBatch, policies: Sequence[str], sampler: str, executor: Executor
    ) -> Comparison:
        """Compare all policies on one batch, which is not empty; pairs are computed in parallel.

        `sampler` is the policy that sampled the tokens; it need not be among the policies.
        """
        pairs = {
            pair: executor.submit(_states, PolicyPair(batch, *pair), policies, sampler)
            for pair in permutations(policies, 2)
        }
        figures = {
            (one, two): executor.submit(PairData.of, PolicyPair(batch, one, two))
            for index, one in enumerate(policies)
            for two in policies[index + 1 :]
        }
        states = {pair: job.result() for pair, job in pairs.items()}
        return cls(
            {pair: suite for pair, (suite, _) in states.items()},
            {pair: weighted for pair, (_, weighted) in states.items() if weighted is not None},
            {pair: job.result() for pair, job in figures.items()},
            moments_of(batch),
        )


def _states(
    pair: PolicyPair, policies: Sequence[str], sampler: str
) -> tuple[SuiteState, WeightedState | None]:
    """Return the state of a pair, and the weighted one where another of the policies sampled."""
    suite = SuiteState.of(pair)
    if pair.behavior == sampler or sampler not in policies:
        return suite, None
    return suite, WeightedState.of(pair, sampler, suite.table)
