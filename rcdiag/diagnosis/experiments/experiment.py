"""An experiment asks whether one cause, or one family of causes, made a recorded column."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester


class Experiment(Struct, frozen=True, kw_only=True):
    """A question to one side's column, what it costs, and how likely it is to tell something.

    Experiments run in the order of `worth` per `passes`: the probability that the answer is yes,
    given how the honest column fails, over the forward passes of a few rows that it takes.
    """

    name: str
    slugs: tuple[str, ...]  # causes that its trials can name
    asks: str
    run: Callable[[HypothesisTester], Iterator[HypothesisTest]]
    passes: Callable[[HypothesisTester], float] = lambda tester: 0.1
    worth: Callable[[HypothesisTester], float] = lambda tester: 1.0
    sides: tuple[str, ...] = ("sampler", "trainer")
    of_batch: bool = False  # what stands beside a row decides, so that one context has many values
