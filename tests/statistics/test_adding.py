"""The sum of states in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar
from weakref import WeakSet

import pytest

from rcdiag.statistics.adding import TOGETHER, RunningSum


@dataclass(frozen=True)
class Rows:
    """Numbers of rows in order, and how often the one that was added most often was copied."""

    numbers: tuple[int, ...]
    copies: int = 0

    def __add__(self, other: Rows) -> Rows:
        return Rows(self.numbers + other.numbers, 1 + max(self.copies, other.copies))


def test_before_the_first_state_there_is_no_sum():
    assert RunningSum().total() is None


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 37, 100])
def test_the_sum_is_in_the_order_in_which_states_came(count):
    states: RunningSum[Rows] = RunningSum()
    for number in range(count):
        states.add(Rows((number,)))
        total = states.total()
        assert total is not None
        assert total.numbers == tuple(range(number + 1))


def test_a_sum_is_the_same_when_it_is_asked_for_again():
    states: RunningSum[Rows] = RunningSum()
    for number in range(11):
        states.add(Rows((number,)))
    assert states.total() == states.total()
    states.add(Rows((11,)))
    total = states.total()
    assert total is not None
    assert total.numbers == tuple(range(12))


@pytest.mark.parametrize("count", [64, 1000, 1023])
def test_no_state_is_copied_for_each_that_follows(count):
    states: RunningSum[Rows] = RunningSum()
    for number in range(count):
        states.add(Rows((number,)))
    total = states.total()
    assert total is not None
    levels = ceil(log(count, TOGETHER))
    assert total.copies <= TOGETHER * levels + levels


class Large:
    """A state that takes memory; `alive` has all that are not gone."""

    alive: ClassVar[WeakSet[Large]] = WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)

    def __iadd__(self, other: Large) -> Large:
        return self

    def __add__(self, other: Large) -> Large:
        return Large()


def test_few_states_are_in_memory_at_any_time():
    """Of 63 states one of eight and one of seven, where a binary counter would keep six."""
    states: RunningSum[Large] = RunningSum()
    for _ in range(TOGETHER**2 - 1):
        states.add(Large())
        assert len(Large.alive) <= 2
    states.total()
    assert len(Large.alive) == 1
