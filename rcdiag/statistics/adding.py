"""The states of many batches add up by `+`, without copying the large ones each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar


class Addable(Protocol):
    """The state of some rows: two of them add up to the state of all rows of both."""

    def __add__(self, other: Any) -> Any: ...


S = TypeVar("S", bound=Addable)


class RunningSum(Generic[S]):
    """The sum of states in the order in which they come.

    Sums of 1, 2, 4, 8, ... states wait, as the digits of a binary counter: a state is copied a
    logarithmic number of times and not once for every state that follows. A state that is taken
    in belongs to the sum, which may add others to it in place.
    """

    def __init__(self) -> None:
        self._waiting: list[S | None] = []  # at place i the sum of 2^i states, or None

    def add(self, state: S) -> None:
        """Take in the state of the next rows."""
        for place, earlier in enumerate(self._waiting):
            if earlier is None:
                self._waiting[place] = state
                return
            earlier += state
            state = earlier
            self._waiting[place] = None
        self._waiting.append(state)

    def total(self) -> S | None:
        """Return the sum so far; None before the first state."""
        total: S | None = None
        for earlier in self._waiting:
            if earlier is not None:
                total = earlier if total is None else earlier + total
        return total


def total(states: Iterable[S]) -> S | None:
    """Return the sum of states as `RunningSum` makes it; None of no state."""
    running: RunningSum[S] = RunningSum()
    for state in states:
        running.add(state)
    return running.total()
