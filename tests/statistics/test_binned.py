"""Sums and largest tokens by bin, against a loop over single tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics import binned
from rcdiag.statistics.binned import BinNumbers, binned_tokens
from tests.builders import make_pair

COUNTS = {"wide": 30, "narrow": 3, "other": 5}


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    clusters=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_sums_by_cluster_and_bin_of_every_axis(lengths, clusters, seed):
    random = np.random.default_rng(seed)
    target = [(-1.0 - random.integers(0, 8, length) / 8).tolist() for length in lengths]
    cluster = random.integers(0, clusters, len(lengths)) * 2
    pair = make_pair([[-1.0] * length for length in lengths], target, cluster=cluster.tolist())
    axes = {}
    for name, count in COUNTS.items():  # the bin number `count` stands for no bin
        numbers = random.integers(0, count + 1, sum(lengths)).astype(np.uint8)
        axes[name] = BinNumbers(numbers, count)
    found = binned_tokens(pair, axes, added=COUNTS)
    keys = pair.tokens.cluster
    assert found.clusters.keys.tolist() == sorted(set(keys.tolist()))
    owner = np.searchsorted(found.clusters.keys, np.repeat(keys, lengths))
    log_ratio = pair.log_ratio
    for name, count in COUNTS.items():
        expected = np.zeros((len(found.clusters.keys), count + 1, 4))
        for at, number, value in zip(owner, axes[name].numbers, log_ratio, strict=True):
            expected[at, number] += 1.0, value, value**2 / 2, np.expm1(value) - value
        assert np.allclose(found.cells[name], expected[:, :count], rtol=1e-12, atol=1e-14)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    seed=st.integers(0, 9),
)
def test_a_bin_of_whole_sequences_is_that_of_each_of_their_tokens(lengths, seed):
    random = np.random.default_rng(seed)
    target = [(-1.0 - random.integers(0, 4, length) / 8).tolist() for length in lengths]  # ties
    cluster = random.integers(0, 3, len(lengths)).tolist()
    pair = make_pair([[-1.0] * length for length in lengths], target, cluster=cluster)
    numbers = random.integers(0, 4, len(lengths)).astype(np.uint8)
    axes = {"row": BinNumbers(numbers, 3), "token": BinNumbers(np.repeat(numbers, lengths), 3)}
    found = binned_tokens(pair, axes, added=axes, shown=axes)
    assert np.allclose(found.cells["row"], found.cells["token"], rtol=1e-12, atol=1e-14)
    for one, other in zip(found.largest["row"], found.largest["token"], strict=True):
        assert one.tolist() == other.tolist()


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    spread=st.integers(1, 50),
    groups=st.sampled_from([4, 8, 256]),
    seed=st.integers(0, 99),
)
def test_the_largest_of_a_bin_equal_those_of_a_sort(lengths, spread, groups, seed):
    random = np.random.default_rng(seed)
    count, tokens = 3, sum(lengths)
    size = random.integers(0, 12, tokens) / 4.0  # with ties
    size[random.random(tokens) < 0.1] = np.nan
    size[random.random(tokens) < 0.05] = np.inf
    bins = random.integers(0, count + 1, tokens).astype(np.uint8)
    starts = np.cumsum(lengths) - lengths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binned, "SPREAD", spread)
        patch.setattr(binned, "GROUPS", groups)
        places, numbers = binned.largest_of_bins(bins, size, starts, count)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for number in range(count):
        best: dict[int, int] = {}  # the first of the largest of every sequence
        for place in np.flatnonzero((bins == number) & ~np.isnan(size)).tolist():
            one = best.setdefault(int(owner[place]), place)
            if size[place] > size[one]:
                best[int(owner[place])] = place
        expected = sorted(best.values(), key=lambda place: (-size[place], place))[: binned.PER_BIN]
        assert sorted(size[places[numbers == number]]) == sorted(size[expected])
        assert places[numbers == number].tolist() == expected
