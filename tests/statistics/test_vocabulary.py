"""Worst token ids against a loop over tokens."""

from __future__ import annotations

from math import nan, sqrt

import numpy as np
import pytest

from rcdiag.statistics import token_ids as vocabulary_module
from rcdiag.statistics.token_ids import (
    FEWEST,
    WORST,
    Vocabulary,
    worst_ids,
)
from tests.builders import make_pair, summed
from tests.statistics.strategies import seeded_batch

NOTHING: dict[str, list] = {"behavior": [[]], "target": [[]], "token_ids": [[]]}


def columns_of(rows: int, ids: int, seed: int = 0) -> dict[str, list]:
    """Make ids of all frequencies, from every row to a single token."""
    random = np.random.default_rng(seed)
    behavior, target = seeded_batch(seed, rows)
    chance = 1.0 / np.arange(1, ids + 1)
    drawn = [random.choice(ids, size=len(row), p=chance / chance.sum()) for row in behavior]
    return {
        "behavior": behavior,
        "target": target,
        "token_ids": [row.tolist() for row in drawn],
        "cluster": random.integers(0, 40, rows).tolist(),
    }


def vocabulary_of(columns: dict[str, list], *cuts: int) -> Vocabulary:
    cut = [
        {name: values[start:end] for name, values in columns.items()}
        for start, end in zip([0, *cuts], [*cuts, len(columns["behavior"])], strict=True)
    ]
    return summed(Vocabulary.of(make_pair(**rows)) for rows in cut)


def by_id(columns: dict[str, list]) -> dict[int, np.ndarray]:
    """Return the log-ratios of each id."""
    result: dict[int, list[float]] = {}
    names = ("behavior", "target", "token_ids")
    for behavior, target, ids in zip(*(columns[name] for name in names), strict=True):
        for one, other, token in zip(behavior, target, ids, strict=True):
            result.setdefault(token, []).append(other - one)
    return {token: np.array(own) for token, own in result.items()}


@pytest.mark.parametrize("dense", [1 << 18, 50])
def test_sums_equal_those_of_single_tokens(dense, monkeypatch):
    monkeypatch.setattr(vocabulary_module, "DENSE", dense)
    columns = columns_of(40, ids=120)
    found = vocabulary_of(columns)
    for token, own in by_id(columns).items():
        place = found.ids.tolist().index(token)
        expected = [len(own), own.sum(), np.square(own).sum()]
        assert np.allclose(found.sums[:, place], expected, rtol=1e-12, atol=1e-14)


def test_worst_ids_are_those_with_the_most_squares_among_the_frequent():
    columns = columns_of(300, ids=120)
    flat = by_id(columns)
    everything = np.concatenate(list(flat.values()))
    frequent = [token for token, own in flat.items() if len(own) >= FEWEST]
    expected = sorted(frequent, key=lambda token: -np.sum(flat[token] ** 2))[:WORST]
    assert len(expected) == WORST < len(frequent) < len(flat)
    result = worst_ids(vocabulary_of(columns))
    assert [item.token_id for item in result] == expected
    for item in result:
        own = flat[item.token_id]
        assert item.tokens == len(own)
        assert item.log_ratio_mean.value == pytest.approx(own.mean())
        assert item.log_ratio_rms == pytest.approx(sqrt(np.mean(own**2)))
        assert item.share_of_squares == pytest.approx(np.sum(own**2) / np.sum(everything**2))
        assert item.share_of_tokens == pytest.approx(len(own) / len(everything))


def test_rare_ids_are_left_out_however_large():
    rows = [[-1.0]] * (FEWEST - 1) + [[-1.0]] * FEWEST
    target = [[-9.0]] * (FEWEST - 1) + [[-1.1]] * FEWEST
    ids = [[3]] * (FEWEST - 1) + [[4]] * FEWEST
    (only,) = worst_ids(vocabulary_of({"behavior": rows, "target": target, "token_ids": ids}))
    assert (only.token_id, only.tokens) == (4, FEWEST)


def test_vocabularies_of_shards_merge_for_any_ids():
    columns = columns_of(100, ids=500)
    expected = worst_ids(vocabulary_of(columns))
    parts = []
    for start in (0, 30, 60):
        end = {0: 30, 30: 60, 60: 100}[start]
        rows = {name: values[start:end] for name, values in columns.items()}
        parts.append(vocabulary_of(rows))
    for result in (
        vocabulary_of(columns, 1, 50, 99),
        summed(parts),
        summed([vocabulary_of(NOTHING), *reversed(parts)]),
    ):
        ids = worst_ids(result)
        assert [item.token_id for item in ids] == [item.token_id for item in expected]
        assert [item.tokens for item in ids] == [item.tokens for item in expected]
        for item, other in zip(ids, expected, strict=True):
            assert item.log_ratio_rms == pytest.approx(other.log_ratio_rms)
            assert item.log_ratio_mean.value == pytest.approx(other.log_ratio_mean.value)


def test_equal_policies_and_nan_have_no_worst_ids():
    rows = [[-1.0]] * 30
    assert worst_ids(vocabulary_of(NOTHING)) == []
    assert worst_ids(vocabulary_of({"behavior": rows, "target": rows})) == []
    dirty = [[nan], *[[-1.5]] * 29]
    assert worst_ids(vocabulary_of({"behavior": rows, "target": dirty})) == []


def test_memory_depends_on_the_ids_that_occur():
    """Batches in one language use a fifth of the ids; sums over all would take 100 MB each."""
    columns = columns_of(40, ids=500)
    ids = [[300 * token for token in row] for row in columns["token_ids"]]
    near, spread = vocabulary_of(columns), vocabulary_of({**columns, "token_ids": ids})
    assert spread.ids.max() > 100_000
    assert len(spread.ids) == len({token for row in ids for token in row})
    kept = np.isin(near.ids, spread.ids // 300)
    assert np.array_equal(near.sums[:, kept], spread.sums)
    assert not near.sums[:, ~kept].any()
