"""The Lorenz curve of KL against sorting all tokens."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.statistics.histograms import Lorenz
from tests.builders import flat, make_pair, summed
from tests.statistics.strategies import seeded_batch

SHARES = [0.01, 0.05, 0.1, 0.3, 0.7, 1.0]
BEHAVIOR, TARGET = seeded_batch(5, sequences=60)


def test_shares_are_those_of_the_sorted_tokens():
    ratio = flat(TARGET) - flat(BEHAVIOR)
    values = np.sort(np.expm1(ratio) - ratio)[::-1]
    made = Lorenz.of(make_pair(BEHAVIOR, TARGET)).shares(SHARES)
    for share, held in made:
        most = share * len(values)
        whole = int(most)
        expected = values[:whole].sum() + (most - whole) * (
            values[whole] if whole < len(values) else 0
        )
        assert held == pytest.approx(expected / values.sum(), abs=0.01)


def test_shards_add_up():
    whole = Lorenz.of(make_pair(BEHAVIOR, TARGET)).shares(SHARES)
    parts = [
        Lorenz.of(make_pair(BEHAVIOR[:9], TARGET[:9])),
        Lorenz.of(make_pair(BEHAVIOR[9:], TARGET[9:])),
    ]
    for one, other in zip(summed(parts).shares(SHARES), whole, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("target", [[[-1.0, -2.0]], [[-1.0, float("inf")]]])
def test_without_a_finite_sum_there_is_no_curve(target):
    assert Lorenz.of(make_pair([[-1.0, -2.0]], target)).shares(SHARES) == []
