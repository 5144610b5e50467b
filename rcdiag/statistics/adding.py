"""The states of many batches add up by `+`, without copying the large ones each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

# So many states are added up one after the other before their sum is added to an earlier one.
TOGETHER = 8


class Addable(Protocol):
    """The state of some rows: two of them add up to the state of all rows of both."""

    def __add__(self, other: Any) -> Any: ...


S = TypeVar("S", bound=Addable)


class RunningSum(Generic[S]):
    """The sum of states in the order in which they come.

    Sums of 1, 8, 64, ... states wait, as the digits of a counter: a state is copied a logarithmic
    number of times and not once for every state that follows, and few states wait at any time,
    since each takes memory of its own. A state that is taken in belongs to the sum, which may add
    others to it in place.
    """

    def __init__(self) -> None:
        # At place i the sum of less than TOGETHER sums of TOGETHER^i states, and how many.
        self._waiting: list[tuple[S, int] | None] = []

    def add(self, state: S) -> None:
        """Take in the state of the next rows."""
        for place, waiting in enumerate(self._waiting):
            if waiting is None:
                self._waiting[place] = state, 1
                return
            earlier, count = waiting
            earlier += state
            if count + 1 < TOGETHER:
                self._waiting[place] = earlier, count + 1
                return
            state = earlier
            self._waiting[place] = None
        self._waiting.append((state, 1))

    def total(self) -> S | None:
        """Return the sum so far, which later states may be added to; None before the first."""
        total: S | None = None
        for waiting in self._waiting:
            if waiting is not None:
                earlier, _ = waiting
                if total is not None:
                    earlier += total
                total = earlier
        # One sum takes the place of all that waited, on top, as the others were before it.
        if total is not None:
            self._waiting = [*[None] * (len(self._waiting) - 1), (total, 1)]
        return total


def total(states: Iterable[S]) -> S | None:
    """Return the sum of states as `RunningSum` makes it; None of no state."""
    running: RunningSum[S] = RunningSum()
    for state in states:
        running.add(state)
    return running.total()
