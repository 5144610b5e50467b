"""States of parts merge into the state of their union, for any cuts and order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.merging import TOGETHER, merge, merged
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail, k_hat
from rcdiag.statistics.suite import SuiteState
from rcdiag.statistics.totals import token_sums
from rcdiag.usecases.compare.pairs import Comparison
from rcdiag.usecases.corrected import CorrectionRows, asked_by
from tests.builders import make_pair, make_state, mismatch, summed, values_of
from tests.corrections.builders import presets_of
from tests.statistics.comparisons import assert_same_values
from tests.statistics.strategies import Batch, seeded_batch


def grouped(seed: int, rows: int = 60) -> tuple[Batch, list[int]]:
    random = np.random.default_rng(seed)
    return seeded_batch(seed, rows), random.integers(0, 11, rows).tolist()


def part(batch: Batch, cluster: list[int], start: int, end: int) -> SuiteState:
    behavior, target = batch
    return make_state(behavior[start:end], target[start:end], cluster[start:end], first_row=start)


def test_an_empty_part_adds_nothing():
    """test_accumulator.py tests other cuts and orders."""
    batch, cluster = grouped(0)
    ends = zip([0, 0, 1, 2, 59], [0, 1, 2, 59, 60], strict=True)
    result = summed([part(batch, cluster, start, end) for start, end in ends])
    assert_same_values(result, make_state(*batch, cluster))


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_is_the_same_whatever_the_order_of_rows(seed):
    batch, cluster = grouped(seed)
    order = np.random.default_rng(seed).permutation(60)
    shuffled = [[rows[row] for row in order] for rows in batch]
    result = make_state(*shuffled, [cluster[row] for row in order])
    assert_same_values(result, make_state(*batch, cluster))


def test_intervals_are_the_same_whatever_the_cut():
    batch, cluster = grouped(2)
    shards = [part(batch, cluster, start, start + 15) for start in (45, 0, 30, 15)]
    result = mismatch(summed(shards))
    for name, value in mismatch(make_state(*batch, cluster)).items():
        for end in ("low", "high"):
            known, made = getattr(value, end), getattr(result[name], end)
            assert made == (known if known is None else pytest.approx(known, rel=1e-9)), name


@pytest.mark.parametrize("impossible_first", [True, False])
def test_a_ratio_of_zero_counts_for_the_tail_in_any_part(impossible_first, monkeypatch):
    monkeypatch.setattr("rcdiag.statistics.pareto.KEPT", 100)
    log_ratio = np.random.default_rng(0).normal(size=1000)
    parts = [np.array([-np.inf]), log_ratio]
    result = summed(map(UpperTail.of, parts if impossible_first else reversed(parts)))
    assert result.count == 1001
    assert k_hat(result) == pytest.approx(k_hat(UpperTail.of(np.concatenate(parts))), nan_ok=True)


def parts_of(pair: PolicyPair) -> dict[str, Any]:
    """Return every kind of state of one batch."""
    steps = pair.by_step()
    plan = presets_of("verl-0.9")
    return {
        "PairState": PairState.of(pair),
        "Comparison": Comparison.of(pair.tokens, ("rollout", "old"), "rollout"),
        "CorrectionRows": CorrectionRows.of(steps, plan, asked_by(plan)),
        "NonFinite": NonFinite.of(pair.tokens),
        "ClusterSums": cluster_sums(pair.tokens.cluster, token_sums(pair)),
    }


@pytest.mark.parametrize("most", [4, 4096])
def test_merging_does_not_change_the_parts(most, monkeypatch):
    monkeypatch.setattr("rcdiag.statistics.clusters.MAX_CLUSTERS", most)
    (behavior, target), cluster = grouped(3)
    rows = [slice(0, 25), slice(25, 40), slice(40, 60)]
    pairs = [
        make_pair(behavior[part], target[part], cluster[part], first_row=part.start)
        for part in rows
    ]
    first, second, third = (parts_of(pair) for pair in pairs)
    for name in first:
        states = [item[name] for item in (first, second, third)]
        before = [pickle.dumps(state) for state in states]
        both = merge(states[:2])
        of_both = pickle.dumps(both)
        merge([both, states[2]])
        merge([states[2], both])
        assert [pickle.dumps(state) for state in states] == before, name
        assert pickle.dumps(both) == of_both, name


def test_shards_of_nan_and_infinities_merge_without_a_warning():
    """Infinite log-ratios of either sign, and NaN, in shards of the same cluster and token id."""
    behavior = [[-1.0, -1.0]] * 4
    target = [[np.inf, -1.1], [-np.inf, -1.2], [np.nan, -1.0], [-1.3, -1.4]]
    shards = [
        make_pair([behavior[row]], [target[row]], [7], first_row=row, token_ids=[[1, 2]])
        for row in range(4)
    ]
    result = summed(PairState.of(shard) for shard in shards)
    state = result.by_step()[None]
    assert len(state.table) == 4
    assert np.isnan(values_of(state)["k1_kl"])


def test_fields_of_a_state_merge_by_their_type():
    one = {"counts": np.array([1, 2]), "tokens": 2, "names": ("a", "b"), "rows": None}
    two = {"counts": np.array([3, 4]), "tokens": 3, "names": ("a", "b"), "later": 1.5}
    both = merge([one, two])
    assert both["counts"].tolist() == [4, 6]
    assert (both["tokens"], both["names"], both["rows"], both["later"]) == (
        5,
        ("a", "b"),
        None,
        1.5,
    )
    with pytest.raises(AssertionError):
        merge([one, {"names": ("b", "a")}])


@dataclass(frozen=True)
class Rows:
    """Row numbers in order, and the largest number of copies of one of them."""

    numbers: tuple[int, ...]
    copies: int = 0

    @classmethod
    def merged(cls, parts: Sequence[Rows]) -> Rows:
        numbers = tuple(number for part in parts for number in part.numbers)
        return cls(numbers, 1 + max(part.copies for part in parts))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 100])
def test_states_of_a_pass_merge_in_order_and_few_wait(count):
    alive: WeakSet[Rows] = WeakSet()
    most = 0

    def made() -> Iterator[Rows]:
        nonlocal most
        for number in range(count):
            rows = Rows((number,))
            alive.add(rows)
            yield rows
            del rows
            most = max(most, len(alive))

    total = merged(made())
    assert most <= TOGETHER
    assert (None if total is None else total.numbers) == (tuple(range(count)) if count else None)
    assert total is None or total.copies <= 1 + count / (TOGETHER - 1)
