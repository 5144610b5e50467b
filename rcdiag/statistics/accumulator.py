"""One pass over a table keeps this state of a pair of policies, bounded in memory."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from rcdiag.statistics.categories import Categories
from rcdiag.statistics.examples import Examples
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import FigureData
from rcdiag.statistics.lorenz import Lorenz
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import Profiles
from rcdiag.statistics.suite import SuiteState, bounded
from rcdiag.statistics.vocabulary import Vocabulary

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
        """Make the state of one batch, which is not empty; its parts are computed side by side."""
        suites = executor.submit(_suites, steps)
        profiles = executor.submit(Profiles.of, pair)
        vocabulary = executor.submit(Vocabulary.of, pair)
        figures = executor.submit(FigureData.of, pair)
        categories = executor.submit(Categories.of, pair)
        examples = executor.submit(Examples.of, pair)
        lorenz = executor.submit(Lorenz.of, pair)
        tokens, sequences = WorstTokens.of(pair), WorstSequences.of(pair)
        return cls(
            suites.result(),
            profiles.result(),
            vocabulary.result(),
            figures.result(),
            tokens,
            sequences,
            categories.result(),
            examples.result(),
            lorenz.result(),
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


def _suites(steps: Mapping[Step, PolicyPair]) -> dict[Step, SuiteState]:
    return bounded({step: SuiteState.of(part) for step, part in steps.items() if len(part.lengths)})


def added_by_key(one: Mapping, other: Mapping) -> dict:
    """Add the states that both mappings have, and keep those that one of them has."""
    both = {key: one[key] + other[key] for key in one if key in other}
    return {**one, **other, **both}
