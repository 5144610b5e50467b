"""An experiment asks whether a cause, or a family of causes, produced a recorded column."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester


class Experiment(Struct, frozen=True, kw_only=True):
    """A question about one side's column, with its cost and its prospects.

    Experiments run in the order of worth / passes: relative probability of a yes, given how the
    baseline fails, over the cost in forward passes of a few rows.
    """

    name: str
    slugs: tuple[str, ...]  # causes that its tests can name
    asks: str
    run: Callable[[HypothesisTester], Iterator[HypothesisTest]]
    passes: Callable[[HypothesisTester], float] = lambda tester: 0.1
    worth: Callable[[HypothesisTester], float] = lambda tester: 1.0
    sides: tuple[str, ...] = ("sampler", "trainer")
    # depends on the other rows of a batch, so that one context may get several values
    of_batch: bool = False
