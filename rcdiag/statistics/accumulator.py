"""The state of a pair of policies that one pass over a table accumulates, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.statistics.binned import binned_tokens
from rcdiag.statistics.categories import Categories, categories_of
from rcdiag.statistics.examples import BY_SIZE, WITHOUT, Examples, size_bins
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import FigureData, Lorenz
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles, sort
from rcdiag.statistics.suite import SuiteState, bounded
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
        named = categories_of(pair)
        axes = {**sort(pair), BY_SIZE: size_bins(pair)}
        axes |= {name: one.bins for name, one in named.items() if one is not None}
        added, shown = axes.keys() - {BY_SIZE}, axes.keys() - {*WITHOUT}
        bins = binned_tokens(pair, axes, added=added, shown=shown)
        steps = pair.by_step().items()
        return cls(
            bounded({step: SuiteState.of(one) for step, one in steps if len(one.lengths)}),
            Profiles.of_bins(bins),
            Vocabulary.of(pair),
            FigureData.of(pair),
            WorstTokens.of(pair),
            WorstSequences.of(pair),
            Categories.of(named, bins),
            Examples.of(pair, bins, named),
            Lorenz.of(pair),
        )

    def bounded(self) -> PairState:
        """Return the state with the suites of all steps bounded together."""
        return replace(self, suites=bounded(self.suites))

    def by_step(self) -> dict[Step, SuiteState]:
        """Return one state per training step, ascending."""
        order = sorted(self.suites, key=lambda step: -1 if step is None else step)
        return {step: self.suites[step] for step in order}
