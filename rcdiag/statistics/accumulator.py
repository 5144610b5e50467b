"""All that one pass over a pair of policies leaves behind, step by step; bounded and mergeable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from rcdiag.statistics.block import Block
from rcdiag.statistics.extremes import WorstSequences, WorstTokens
from rcdiag.statistics.histograms import FigureData
from rcdiag.statistics.profiles import Profiles, union_of_profiles
from rcdiag.statistics.suite import SuiteState, bound_memory, union_of_states
from rcdiag.statistics.vocabulary import Vocabulary, union_of_vocabularies

# States of so many blocks wait until they are added up: one by one would copy the table each time.
WAITING = 32

Step = int | None
Parts = Mapping[Step, Block]


@dataclass
class Summary:
    """What is kept of the blocks seen so far."""

    suites: dict[Step, list[SuiteState]] = field(default_factory=dict)
    profiles: list[Profiles] = field(default_factory=list)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    figures: FigureData = field(default_factory=FigureData)
    worst_tokens: WorstTokens = field(default_factory=WorstTokens)
    worst_sequences: WorstSequences = field(default_factory=WorstSequences)

    def add(self, block: Block, executor: Executor, *others: Callable[[Parts], None]) -> None:
        """Take in a block; its parts, and what `others` make of it, are computed side by side."""
        parts = block.by_step()
        jobs = [executor.submit(other, parts) for other in others]
        if len(block.lengths):
            jobs.append(executor.submit(self._add_suites, parts))
            jobs.append(executor.submit(self._add_profiles, block))
            jobs.append(executor.submit(self._add_details, block))
        for job in jobs:
            job.result()

    def _add_suites(self, parts: Parts) -> None:
        for step, block in parts.items():
            if not len(block.lengths):
                continue
            states = self.suites.setdefault(step, [])
            states.append(SuiteState.of(block))
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
