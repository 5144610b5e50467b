"""Examples of bins against a search through all tokens, and over any cut of the rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from rcdiag.statistics import binned
from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.examples import AFTER, BEFORE, PER_BIN, Examples
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import PROFILES
from tests.builders import make_pair, summed
from tests.statistics.profile_loops import columns_of, label, tokens_of

# Every row is its own cluster, so that a token's cluster identifies its row.
COLUMNS = {**columns_of(60), "cluster": list(range(60))}
LISTS = {name: values for name, values in COLUMNS.items() if name != "entropy"}


def pair_of_rows(start: int, stop: int):
    lists = {name: values[start:stop] for name, values in LISTS.items()}
    entropy = {"old": COLUMNS["entropy"][start:stop]}
    return make_pair(**lists, entropy=entropy, first_row=start)


def examples_of(pair: PolicyPair) -> Examples:
    return PairState.of(pair).examples


def named(state: Examples) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Return row and position of every example, by axis and bin."""
    return {
        axis: {name: [(one.row, one.position) for one in some] for name, some in bins.items()}
        for axis, bins in state.bins.items()
    }


@pytest.mark.parametrize("axis", ["position", "entropy", "length", "reward"])
def test_a_bin_has_the_largest_tokens_at_most_one_per_row(axis):
    result = named(examples_of(pair_of_rows(0, 60)))[axis]
    sizes: dict[str, dict[int, float]] = defaultdict(dict)
    for token in tokens_of(COLUMNS):
        name = label(axis, getattr(token, axis))
        if name is not None:
            row = sizes[name]
            row[token.cluster] = max(row.get(token.cluster, 0.0), abs(token.log_ratio))
    assert set(result) == set(sizes)
    for name, rows in sizes.items():
        largest = sorted(rows, key=lambda row: (-rows[row], row))[:PER_BIN]
        assert [row for row, _ in result[name]] == largest, name


@pytest.mark.parametrize("cut", [1, 17, 59])
def test_the_examples_of_two_shards_are_those_of_both(cut):
    shards = [examples_of(pair_of_rows(0, cut)), examples_of(pair_of_rows(cut, 60))]
    assert named(summed(shards)) == named(examples_of(pair_of_rows(0, 60)))


def test_examples_do_not_depend_on_the_groups_that_are_searched_first(monkeypatch):
    whole = named(examples_of(pair_of_rows(0, 60)))
    for size in (1, 7, 30):
        monkeypatch.setattr(binned, "GROUPS", size)
        assert named(examples_of(pair_of_rows(0, 60))) == whole


def test_sizes_are_separated_by_sign():
    pair = make_pair([[-1.0, -1.0, -1.0]], [[-0.5, -1.5, -1.0]])
    bins = named(examples_of(pair))
    assert bins["likelier_target"] == {"0.3-1": [(0, 0)]}
    assert bins["likelier_behavior"] == {"0.3-1": [(0, 1)]}


def test_neighbours_are_those_of_the_row():
    lengths = (3, 12, 2)
    log_probs = [[-1.0] * length for length in lengths]
    target = [[-1.0] * length for length in lengths]
    target[1][8] = -3.0
    pair = make_pair(log_probs, target)
    (one,) = examples_of(pair).bins["likelier_behavior"]["1-3"]
    ids = pair.tokens.token_id[3:15].tolist()
    assert (one.token_id, one.before) == (ids[8], tuple(ids[8 - BEFORE : 8]))
    assert one.after == tuple(ids[9 : 9 + AFTER])


def test_nan_is_never_an_example():
    pair = make_pair([[-1.0, -1.0]], [[float("nan"), -2.0]])
    result = examples_of(pair).finished(PROFILES)
    assert result.position == [1]
    assert np.isfinite(result.log_ratio).all()


def test_a_result_has_every_token_once_and_only_known_profiles():
    result = examples_of(pair_of_rows(0, 60)).finished(["position"])
    assert set(result.by_bin) <= {"position", "likelier_target", "likelier_behavior"}
    places = list(zip(result.row, result.position, strict=True))
    assert len(set(places)) == len(places)
    used = {place for bins in result.by_bin.values() for some in bins.values() for place in some}
    assert used == set(range(len(places)))
