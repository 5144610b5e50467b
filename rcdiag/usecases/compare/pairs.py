"""The state of a comparison: the metrics of every ordered pair, figures and joint moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

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
    def of(cls, batch: TokenBatch, policies: Sequence[str], sampler: str) -> Comparison:
        """Compare all policies on one batch, which is not empty.

        `sampler` is the policy that sampled the tokens; it need not be among the policies.
        """
        suites, weighted = {}, {}
        for names in permutations(policies, 2):
            pair = PolicyPair(batch, *names)
            suites[names] = SuiteState.of(pair)
            if pair.behavior != sampler and sampler in policies:
                weighted[names] = WeightedState.of(pair, sampler, suites[names].table)
        figures = {
            pair: PairData.of(PolicyPair(batch, *pair)) for pair in combinations(policies, 2)
        }
        return cls(suites, weighted, figures, moments_of(batch))
