"""The pass of a comparison: metrics of every ordered pair, figures and joint moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.results import Diagnosis, PairFigure
from rcdiag.runners import Runner
from rcdiag.statistics.extremes import NonFinite, RowCount, rows_of_numbers
from rcdiag.statistics.histograms import LOG_PROB_EDGES, log_prob_counts
from rcdiag.statistics.moments import Moments, moments_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import SuiteState
from rcdiag.statistics.weighted import WeightedState
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch
from rcdiag.usecases.diagnosed import read_and_diagnose
from rcdiag.usecases.passes import Walk, read_table

Pair = tuple[str, str]


class PairData(Struct, frozen=True):
    """The data for the figures of one unordered pair."""

    log_probs: NDArray[np.int64]  # tokens in the cells of LOG_PROB_EDGES
    profiles: Profiles

    @classmethod
    def of(cls, pair: PolicyPair) -> PairData:
        counts = log_prob_counts(pair.values.behavior, pair.values.target)
        return cls(counts, Profiles.of(pair, ("mean_probability",)))

    def figure(self) -> PairFigure:
        """Return the non-zero counts and the profile, as the result holds them."""
        one, two = np.nonzero(self.log_probs)
        return PairFigure(
            edges=LOG_PROB_EDGES.tolist(),
            cells=np.stack([one, two, self.log_probs[one, two]], axis=1).tolist(),
            by_probability=finished(self.profiles)["mean_probability"],
        )


class Comparison(Struct, frozen=True):
    """All pairs of some policies, and their joint moments."""

    # Of every ordered pair, and of the sampler with each policy, whose ratios are the weights.
    suites: Mapping[Pair, SuiteState]
    # Of ordered pairs whose behavior policy did not sample, if the sampler is known.
    weighted: Mapping[Pair, WeightedState]
    figures: Mapping[Pair, PairData]  # of every unordered pair, in the order of the policies
    moments: Moments

    @classmethod
    def of(cls, batch: TokenBatch, policies: Sequence[str], sampler: str | None) -> Comparison:
        """Compare all policies on one batch, which is not empty.

        `sampler` is the policy that sampled the tokens; it need not be among the policies, whose
        numbers are reweighted from it.
        """
        suites, weighted = {}, {}
        pairs = list(permutations(policies, 2))
        if sampler is not None and sampler not in policies:
            pairs += [(sampler, name) for name in policies]
        for names in pairs:
            pair = PolicyPair(batch, *names)
            suites[names] = SuiteState.of(pair)
            if sampler is not None and pair.behavior != sampler:
                weighted[names] = WeightedState.of(pair, sampler, suites[names].table)
        figures = {
            pair: PairData.of(PolicyPair(batch, *pair)) for pair in combinations(policies, 2)
        }
        compared = replace(batch, log_probs={name: batch.log_probs[name] for name in policies})
        return cls(suites, weighted, figures, moments_of(compared))


class ComparedRows(Struct, frozen=True):
    """Counts, invalid log-probs and the comparison of some rows, which the pass merges."""

    non_finite: NonFinite
    count: RowCount
    comparison: Comparison | None  # None where no row is compared

    @property
    def empty(self) -> bool:
        return not self.count.sequences


class ComparingWalk(Walk[ComparedRows], frozen=True, kw_only=True):
    """The pass that compares policies; rows with invalid log-probs are only counted."""

    compared: Sequence[str]  # of the policies read, which are those and the sampler
    sampler: str | None
    every_row: bool = False  # compare rows with invalid log-probs too

    def of_batch(self, batch: TokenBatch) -> ComparedRows:
        """Return the counts of one batch, and the comparison of its rows."""
        keep = rows_of_numbers(batch)
        clean = batch if self.every_row or keep.all() else batch.take(keep, batch.empty)
        comparison = None
        if len(clean.lengths):
            comparison = Comparison.of(clean, self.compared, self.sampler)
        return ComparedRows(NonFinite.of(batch), RowCount.of(batch), comparison)


def read_comparison(
    dump: Table,
    policies: Sequence[str],
    sampler: str | None,
    runner: Runner | None = None,
) -> tuple[ComparedRows, Comparison, Diagnosis]:
    """Read and diagnose the table in one pass; rows with invalid log-probs are only counted.

    The comparison is over the other rows. If these are fewer than half, it is over all rows, so
    that one broken policy does not hide the others.
    """
    read_policies = tuple(dict.fromkeys((*policies, *([] if sampler is None else [sampler]))))
    walk = ComparingWalk(policies=read_policies, compared=policies, sampler=sampler)
    read, diagnosis = read_and_diagnose(dump, walk, runner)
    every = read_table(dump, replace(walk, every_row=True), runner) if read.count.too_few else read
    assert every is not None
    assert every.comparison is not None
    return every, every.comparison, diagnosis
