"""Names of groups change no number, to the last bit; only the grouping matters."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.statistics.forecast import forecast
from rcdiag.statistics.metrics import METRICS, measured
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.hashing import mixed
from tests.statistics.generators import Generator

LAW = Generator("both", 0.05)


def renamed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Rename every key without collisions; `mixed` is a bijection."""
    return mixed(keys + np.uint64(seed)) if seed else keys


@cache
def numbers(groups: int, seed: int) -> str:
    pair = LAW.pair(3, groups)
    pair.tokens.cluster[...] = renamed(pair.tokens.cluster, seed)
    suite = Suite(SuiteState.of(pair))
    table = suite.state.table
    return str(
        (
            measured(list(METRICS.values()), suite),
            finished(Profiles.of(pair)),
            forecast(table.lengths, table.sums["log_ratio"], table.cluster),
        )
    )


@pytest.mark.parametrize("groups", [2, 45])
@settings(max_examples=15)
@given(seed=st.integers(1, 2**63))
def test_names_of_groups_change_no_number(groups, seed):
    assert numbers(groups, seed) == numbers(groups, 0)


def test_another_grouping_changes_intervals():
    pair = LAW.pair(3, 45)
    apart = LAW.pair(3, 45)
    apart.tokens.cluster[...] = np.arange(len(apart.tokens.cluster))
    one, other = (METRICS["k3_kl"].value(Suite(SuiteState.of(each))) for each in (pair, apart))
    assert one.value == pytest.approx(other.value)
    assert one.high != other.high
