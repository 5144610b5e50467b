"""States of shards add up to the state of their union, whatever the cut and the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics.metrics import mismatch
from rcdiag.statistics.pareto import UpperTail, k_hat
from rcdiag.statistics.suite import SuiteState
from tests.builders import make_state, metrics_of, summed
from tests.statistics.comparisons import assert_same_values
from tests.statistics.strategies import Batch, batches, seeded_batch


def grouped(seed: int, rows: int = 60) -> tuple[Batch, list[int]]:
    random = np.random.default_rng(seed)
    return seeded_batch(seed, rows), random.integers(0, 11, rows).tolist()


def part(batch: Batch, cluster: list[int], start: int, end: int) -> SuiteState:
    behavior, target = batch
    return make_state(behavior[start:end], target[start:end], cluster[start:end], first_row=start)


@given(batches(), st.data())
def test_shards_add_up_to_their_union(batch, data):
    behavior, target = batch
    cut = data.draw(st.integers(0, len(behavior)))
    shards = [make_state(behavior[:cut], target[:cut])]
    shards.append(make_state(behavior[cut:], target[cut:], first_row=cut))
    found, wanted = metrics_of(summed(shards)), metrics_of(make_state(*batch))
    for name in ("k1_kl", "k2_kl", "k3_kl_seq", "ess_seq", "perplexity_ess_token", "tv_seq"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("cuts", [[30], [0, 1, 2, 59], [10, 20, 30, 40, 50], list(range(60))])
def test_every_metric_is_the_same_whatever_the_cut(cuts):
    batch, cluster = grouped(0)
    ends = zip([0, *cuts], [*cuts, 60], strict=True)
    found = summed([part(batch, cluster, start, end) for start, end in ends])
    assert_same_values(found, make_state(*batch, cluster))


def test_every_metric_is_the_same_whatever_the_order_of_shards_and_unions():
    batch, cluster = grouped(1)
    a, b, c = (part(batch, cluster, start, start + 20) for start in (0, 20, 40))
    wanted = make_state(*batch, cluster)
    assert_same_values(summed([c, a, b]), wanted)
    assert_same_values(summed([summed([b, c]), a]), wanted)
    assert_same_values(summed([summed([c, summed([a])]), b]), wanted)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_is_the_same_whatever_the_order_of_rows(seed):
    batch, cluster = grouped(seed)
    order = np.random.default_rng(seed).permutation(60)
    shuffled = [[rows[row] for row in order] for rows in batch]
    found = make_state(*shuffled, [cluster[row] for row in order])
    assert_same_values(found, make_state(*batch, cluster))


def test_intervals_are_the_same_whatever_the_cut():
    batch, cluster = grouped(2)
    shards = [part(batch, cluster, start, start + 15) for start in (45, 0, 30, 15)]
    found = mismatch(summed(shards), seed=0)
    for name, value in mismatch(make_state(*batch, cluster), seed=0).items():
        if value.low is None:
            assert found[name].low is None, name
        else:
            ends = (value.low, value.high)
            assert (found[name].low, found[name].high) == pytest.approx(ends, rel=1e-9), name


@pytest.mark.parametrize("impossible_first", [True, False])
def test_a_ratio_of_zero_counts_for_the_tail_the_same_whenever_it_comes(
    impossible_first, monkeypatch
):
    monkeypatch.setattr("rcdiag.statistics.pareto.KEPT", 100)
    log_ratio = np.random.default_rng(0).normal(size=1000)
    parts = [np.array([-np.inf]), log_ratio]
    found = UpperTail()
    for values in parts if impossible_first else reversed(parts):
        found.add(values)
    shards = [UpperTail(), UpperTail()]
    for shard, values in zip(shards, parts, strict=True):
        shard.add(values)
    assert k_hat(found) == pytest.approx(k_hat(summed(shards)), nan_ok=True)
