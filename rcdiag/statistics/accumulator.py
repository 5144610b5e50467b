"""The state of a pair of policies that one pass over a table accumulates, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.statistics import binned
from rcdiag.statistics.binned import BinNumbers
from rcdiag.statistics.categories import Categories, categories_of
from rcdiag.statistics.examples import BY_SIZE, WITHOUT, Examples, size_bins
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import Counts, FigureData, Lorenz, token_counts
from rcdiag.statistics.merging import merge
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, sort
from rcdiag.statistics.suite import BlockSums, SuiteState, bounded
from rcdiag.statistics.token_ids import Vocabulary

Step = int | None


class PairState(Struct, frozen=True):
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
    def of(cls, pair: PolicyPair) -> PairState:
        """Compute the state of one non-empty batch."""
        groups = binned.clusters_of(pair)
        clusters = binned.cut_like_blocks(pair, groups.index)
        named = categories_of(pair)
        known = {name: of.bins for name, of in named.items() if of is not None}
        cut = {name: binned.cut_like_blocks(pair, bins.numbers) for name, bins in known.items()}
        walked = []
        for number, (block, cluster) in enumerate(zip(pair.blocks, clusters, strict=True)):
            axes = {**sort(block), BY_SIZE: size_bins(block)}
            for name, bins in known.items():
                axes[name] = BinNumbers(cut[name][number], bins.count)
            added, shown = axes.keys() - {BY_SIZE}, axes.keys() - {*WITHOUT}
            walked.append(
                _BlockState(
                    BlockSums.of(block),
                    binned.block_bins(block, cluster, axes, added=added, shown=shown),
                    token_counts(block),
                    WorstTokens.of(block),
                    Lorenz.of(block),
                )
            )
        bins_of_batch = binned.joined_bins([block.bins for block in walked], groups)
        log_ratio_sums = [block.suite.table.sums["log_ratio"] for block in walked]
        return cls(
            _by_step(pair, [block.suite for block in walked]),
            Profiles.joined(bins_of_batch),
            Vocabulary.of(pair),
            FigureData.joined(pair, [block.counts for block in walked]),
            merge([block.worst_tokens for block in walked]),
            WorstSequences.of(pair, np.concatenate(log_ratio_sums)),
            Categories.joined(named, bins_of_batch),
            Examples.joined(pair, bins_of_batch, named),
            merge([block.lorenz for block in walked]),
        )

    def bounded(self) -> PairState:
        """Return the state with the suites of all steps bounded together."""
        return replace(self, suites=bounded(self.suites))

    def by_step(self) -> dict[Step, SuiteState]:
        """Return one state per training step, ascending."""
        order = sorted(self.suites, key=lambda step: -1 if step is None else step)
        return {step: self.suites[step] for step in order}


class _BlockState(Struct, frozen=True):
    """The result of one walk over the tokens of a block, for the state of its batch."""

    suite: BlockSums
    bins: binned.BlockBins
    counts: Counts
    worst_tokens: WorstTokens
    lorenz: Lorenz


def _by_step(pair: PolicyPair, blocks: Sequence[BlockSums]) -> dict[Step, SuiteState]:
    """Compute the state of every training step from the sums of a batch's blocks."""
    step = pair.tokens.step
    if step is None:
        return bounded({None: SuiteState.joined(blocks)})
    of_steps: dict[int, list[BlockSums]] = {}
    cut = np.split(step, np.cumsum([len(block.table) for block in blocks])[:-1])
    for block, steps in zip(blocks, cut, strict=True):
        for one in np.unique(steps).tolist():
            of_steps.setdefault(one, []).append(block.take(steps == one))
    return bounded({one: SuiteState.joined(of_steps[one]) for one in sorted(of_steps)})
