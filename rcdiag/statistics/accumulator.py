"""One pass over a table keeps this state of a pair of policies, bounded in memory."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from rcdiag.statistics import profiles
from rcdiag.statistics.categories import Categories
from rcdiag.statistics.examples import Examples
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import Counts, FigureData, token_counts
from rcdiag.statistics.lorenz import Lorenz
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import BlockSums, SuiteState, bounded
from rcdiag.statistics.vocabulary import Vocabulary
from rcdiag.table.segments import starts_of

Step = int | None


@dataclass(frozen=True, slots=True)
class PairState:
    """The state of some rows: metrics by training step, and sums for profiles and figures."""

    suites: Mapping[Step, SuiteState]
    profiles: Profiles
    vocabulary: Vocabulary
    figures: FigureData
    worst_tokens: WorstTokens
    worst_sequences: WorstSequences
    categories: Categories
    examples: Examples
    lorenz: Lorenz

    @classmethod
    def of(
        cls, pair: PolicyPair, steps: Mapping[Step, PolicyPair], executor: Executor
    ) -> PairState:
        """Make the state of one batch, which is not empty; its blocks are walked side by side."""
        vocabulary = executor.submit(Vocabulary.of, pair)
        categories = executor.submit(Categories.of, pair)
        examples = executor.submit(Examples.of, pair)
        filled = {step: part for step, part in steps.items() if len(part.lengths)}
        by_step = any(part is not pair for part in filled.values())
        walk = _walk_but_for_suite if by_step else _walk
        walked = list(executor.map(walk, pair.blocks))
        suites = {
            step: executor.map(BlockSums.of, part.blocks)
            if by_step
            else [block.suite for block in walked if block.suite is not None]
            for step, part in filled.items()
        }
        log_ratio_sums = np.concatenate([block.log_ratio_sums for block in walked])
        return cls(
            bounded({step: SuiteState.joined(list(blocks)) for step, blocks in suites.items()}),
            Profiles.joined(pair, [block.profiles for block in walked]),
            vocabulary.result(),
            FigureData.joined(pair, [block.counts for block in walked]),
            sum((block.worst_tokens for block in walked), WorstTokens()),
            WorstSequences.of(pair, log_ratio_sums),
            categories.result(),
            examples.result(),
            reduce(add, (block.lorenz for block in walked)),
        )

    def __add__(self, other: PairState) -> PairState:
        return PairState(
            bounded(added_by_key(self.suites, other.suites)),
            self.profiles + other.profiles,
            self.vocabulary + other.vocabulary,
            self.figures + other.figures,
            self.worst_tokens + other.worst_tokens,
            self.worst_sequences + other.worst_sequences,
            self.categories + other.categories,
            self.examples + other.examples,
            self.lorenz + other.lorenz,
        )

    def by_step(self) -> dict[Step, SuiteState]:
        """Return one state per training step, ascending."""
        order = sorted(self.suites, key=lambda step: -1 if step is None else step)
        return {step: self.suites[step] for step in order}


@dataclass(frozen=True, slots=True)
class _Walked:
    """What one walk over the tokens of a block leaves for the state of its batch."""

    profiles: profiles.BlockSums
    counts: Counts
    worst_tokens: WorstTokens
    lorenz: Lorenz
    log_ratio_sums: Array  # [sequences] nats
    suite: BlockSums | None  # None where it is made for each training step


def _walk_but_for_suite(block: PolicyPair) -> _Walked:
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(block.log_ratio, starts_of(block.lengths))
    return _Walked(
        profiles.block_sums(block),
        token_counts(block),
        WorstTokens.of(block),
        Lorenz.of(block),
        sums,
        None,
    )


def _walk(block: PolicyPair) -> _Walked:
    suite = BlockSums.of(block)
    return replace(_walk_but_for_suite(block), suite=suite)


def added_by_key(one: Mapping, other: Mapping) -> dict:
    """Add the states that both mappings have, and keep those that one of them has."""
    both = {key: one[key] + other[key] for key in one if key in other}
    return {**one, **other, **both}
