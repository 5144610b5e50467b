"""Profiles by step, engine and version against sums over the rows of each category."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.categories import MOST, Categories
from rcdiag.statistics.pair import PolicyPair
from tests.builders import make_pair, summed
from tests.statistics.strategies import seeded_batch

BEHAVIOR, TARGET = seeded_batch(3, sequences=40)
ENGINES = [f"replica-{row % 3}" for row in range(40)]
STEPS = np.array([row // 10 for row in range(40)])


def categories_of(pair: PolicyPair) -> Categories:
    return PairState.of(pair).categories


def pair_of_rows(start: int, stop: int):
    rows = slice(start, stop)
    return make_pair(
        BEHAVIOR[rows],
        TARGET[rows],
        first_row=start,
        engine=ENGINES[rows],
        step=STEPS[rows],
        policy_version=np.array([row % 2 - 1 for row in range(40)][rows]),
    )


def test_a_category_has_the_numbers_of_its_rows():
    profiles = categories_of(pair_of_rows(0, 40)).finished()
    bins = {one.label: one for one in profiles["engine"].bins}
    assert list(bins) == ["replica-0", "replica-1", "replica-2"]
    squares = {name: 0.0 for name in bins}
    for name, behavior, target in zip(ENGINES, BEHAVIOR, TARGET, strict=True):
        squares[name] += float(np.square(np.subtract(target, behavior)).sum())
    for name, one in bins.items():
        ratios = np.concatenate(
            [np.subtract(TARGET[row], BEHAVIOR[row]) for row in range(40) if ENGINES[row] == name]
        )
        assert one.tokens == len(ratios)
        assert one.log_ratio_mean.value == pytest.approx(ratios.mean())
        assert one.share_of_squares == pytest.approx(squares[name] / sum(squares.values()))


def test_categories_are_sorted_and_an_unknown_version_is_labelled():
    profiles = categories_of(pair_of_rows(0, 40)).finished()
    assert [one.label for one in profiles["step"].bins] == ["0", "1", "2", "3"]
    assert [one.label for one in profiles["policy_version"].bins] == ["0", "unknown"]


@pytest.mark.parametrize("cut", [1, 20, 33])
def test_two_shards_add_up(cut):
    whole = categories_of(pair_of_rows(0, 40)).finished()
    both = summed([categories_of(pair_of_rows(0, cut)), categories_of(pair_of_rows(cut, 40))])
    for name, profile in both.finished().items():
        for one, other in zip(profile.bins, whole[name].bins, strict=True):
            assert (one.label, one.tokens) == (other.label, other.tokens)
            for number in ("value", "low", "high"):
                ends = [getattr(item.log_ratio_rms, number) for item in (one, other)]
                assert ends[0] == pytest.approx(ends[1])


def test_too_many_categories_give_no_profile():
    rows = MOST + 1
    lists = [[-1.0, -2.0] for _ in range(rows)]
    pair = make_pair(lists, lists, step=np.arange(rows))
    assert categories_of(pair).finished() == {}


def test_one_category_gives_no_profile():
    assert categories_of(make_pair([[-1.0]], [[-2.0]], step=np.array([4]))).finished() == {}
