"""All that one pass over a pair of policies leaves behind, step by step; bounded and mergeable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from rcdiag.statistics.block import Block
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import FigureData
from rcdiag.statistics.profiles import Profiles, union_of_profiles
from rcdiag.statistics.suite import SuiteState, bound_memory, union_of_states
from rcdiag.statistics.vocabulary import Vocabulary, union_of_vocabularies

# States of so many blocks wait until they are added up: one by one would copy the table each time.
WAITING = 32

Step = int | None


@dataclass
class Summary:
    """What is kept of the blocks seen so far."""

    suites: dict[Step, list[SuiteState]] = field(default_factory=dict)
    profiles: list[Profiles] = field(default_factory=list)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    figures: FigureData = field(default_factory=FigureData)
    worst_tokens: WorstTokens = field(default_factory=WorstTokens)
    worst_sequences: WorstSequences = field(default_factory=WorstSequences)

    def add(self, block: Block, executor: Executor) -> None:
        """Take in a block; its parts are computed side by side."""
        if not len(block.lengths):
            return
        jobs: list[Callable[[Block], None]] = [
            self._add_suites,
            self._add_profiles,
            self._add_details,
        ]
        for done in [executor.submit(job, block) for job in jobs]:
            done.result()

    def _add_suites(self, block: Block) -> None:
        for step in _steps(block):
            states = self.suites.setdefault(step, [])
            states.append(SuiteState.of(block if step is None else block.of_step(step)))
            if len(states) >= WAITING:
                states[:] = [union_of_states(states)]
        bound_memory([state for states in self.suites.values() for state in states])

    def _add_profiles(self, block: Block) -> None:
        self.profiles.append(Profiles.of(block))
        if len(self.profiles) >= WAITING:
            self.profiles[:] = [union_of_profiles(self.profiles)]

    def _add_details(self, block: Block) -> None:
        self.vocabulary.add(block)
        self.figures.add(block)
        self.worst_tokens.add(block)
        self.worst_sequences.add(block)

    def merge(self, other: Summary) -> None:
        """Take in what a pass over other rows of the same table left."""
        for step, states in other.suites.items():
            self.suites.setdefault(step, []).extend(states)
        bound_memory([state for states in self.suites.values() for state in states])
        self.profiles += other.profiles
        self.vocabulary = union_of_vocabularies([self.vocabulary, other.vocabulary])
        self.figures.merge(other.figures)
        self.worst_tokens.merge(other.worst_tokens)
        self.worst_sequences.merge(other.worst_sequences)

    def by_step(self) -> dict[Step, SuiteState]:
        """One state per step, ascending."""
        order = sorted(self.suites, key=lambda step: -1 if step is None else step)
        return {step: union_of_states(self.suites[step]) for step in order}


def _steps(block: Block) -> Iterable[Step]:
    return (None,) if block.step is None else map(int, np.unique(block.step))
