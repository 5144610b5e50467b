"""The options of the experiments with a checkpoint, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.experiments.hypothesis_tester import Coders, HypothesisTest, no_coders
from rcdiag.diagnosis.experiments.order import RunSummary
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.weights_by_row import WeightsByRow
from rcdiag.diagnosis.validity import Interval


class ExperimentOptions(Struct, frozen=True, kw_only=True):
    """What the user provides beside the table and the trainer's model."""

    checkpoints: Sequence[Path] = ()
    coders: Coders = no_coders  # of the checkpoint's tokenizer
    rows: int = 256
    deadline: float | None = None  # time.monotonic()
    progress: Callable[[str], None] = lambda text: None


class Outcome(Struct):
    """The result of the experiments on a case."""

    sample: RescoredSample
    sides: list[Side]
    suspicions: list[Suspicion] = field(default_factory=list)
    ruled_out: list[str] = field(default_factory=list)
    tests: list[HypothesisTest] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # experiments for which no time was left
    weights: dict[str, WeightsByRow] = field(default_factory=dict)  # by side
    temperature: Interval | None = None  # of the tokens
    steps: list[int] | None = None  # training steps whose rows were read; None: all steps

    def record(self, run: RunSummary) -> list[HypothesisTest]:
        """Store the tests that ran and the experiments that did not, and return the tests."""
        self.tests += run.tests
        self.open += run.open
        return list(run.tests)

    def experiments_of(self, side: Side) -> int:
        """Return how many experiments ran on a side's column."""
        return len({test.experiment for test in self.tests if test.side == side.name})

    def not_run(self, side: Side) -> float:
        """Return the share of the experiments on a side for which no time was left."""
        left = len(set(self.open))
        return left / max(left + self.experiments_of(side), 1)
