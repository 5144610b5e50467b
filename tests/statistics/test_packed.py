"""Packed columns give back every bit, and take the few bytes that they are made for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rcdiag.statistics import packed
from rcdiag.statistics.packed import PackedColumns, joined_columns, packed_where_many

ROWS = 3_000


def columns_of(rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns such as corrections keep: alike, mostly 0, short in float32, and hostile ones."""
    random = np.random.default_rng(seed)
    ratio = np.exp(random.normal(0.0, 0.3, rows))
    hostile = random.normal(size=rows)
    hostile[::5] = [np.nan, np.inf, -np.inf, -0.0, 1e-310][seed % 5]
    return {
        "ratio": ratio,
        "same": ratio.copy(),
        "truncated": np.minimum(ratio, 2.0),
        "beyond": (ratio > 2.0).astype(np.float64),
        "rounded": ratio.astype(np.float32).astype(np.float64),
        "huge": ratio * 1e300,
        "unknown": np.full(rows, np.nan),
        "minus": np.full(rows, -0.0),
        "hostile": hostile,
        "negated": -ratio,
        "hostile_negated": -hostile,
        "near": ratio + random.normal(0.0, 1e-8, rows),
        "prompts": np.repeat(random.integers(0, 2**64, rows, np.uint64), 8)[:rows].view(np.float64),
        "tokens": random.normal(size=2 * rows + 1),
    }


def assert_same_bits(result: PackedColumns[str], expected: dict[str, np.ndarray]) -> None:
    for name, column in expected.items():
        unpacked = result[name]
        assert unpacked.dtype == np.float64
        assert np.array_equal(unpacked.view(np.uint64), column.view(np.uint64)), name


@pytest.mark.parametrize("rows", [1, 7, packed.FEWEST_TO_COMPARE, packed.ROWS_OF_PIECE, ROWS])
@pytest.mark.parametrize("seed", range(5))
def test_every_bit_comes_back(rows, seed):
    columns = columns_of(rows, seed)
    assert_same_bits(PackedColumns.of(columns, rows), columns)


def test_columns_that_say_nothing_new_take_next_to_nothing():
    columns = columns_of()
    result = PackedColumns.of(columns, ROWS)
    alike = ("same", "unknown", "minus")
    rest = {name: column for name, column in columns.items() if name not in alike}
    assert result.nbytes == PackedColumns.of(rest, ROWS).nbytes
    # 12 bytes for each of the 1% that are truncated, and 4 in place of 8.
    only = {name: columns[name] for name in ("ratio", "truncated", "beyond", "rounded")}
    assert PackedColumns.of(only, ROWS).nbytes < (8 + 4 + 0.6) * ROWS


def test_minus_a_column_a_column_near_another_and_runs_take_little():
    columns = columns_of()
    ratio = {"ratio": columns["ratio"]}
    alone = PackedColumns.of(ratio, ROWS).nbytes

    def more(name: str) -> float:
        both = PackedColumns.of({**ratio, name: columns[name]}, ROWS)
        return (both.nbytes - alone) / ROWS

    assert more("negated") == 0
    assert more("near") == 4
    assert more("prompts") == 12 / 8
    columns["far"] = columns["ratio"] * (1.0 + 1e-3 * np.arange(ROWS))
    assert more("far") > 7.9


@pytest.mark.parametrize("cuts", [(0, 3000), (0, 1, 2, 700, 3000), tuple(range(0, 3001, 60))])
def test_shards_add_up_to_the_whole_in_any_order_of_adding(cuts, monkeypatch):
    monkeypatch.setattr(packed, "ROWS_OF_PIECE", 1_000)
    columns = columns_of()
    columns.pop("tokens")
    shards = [
        PackedColumns.of({name: one[start:end] for name, one in columns.items()}, end - start)
        for start, end in pairwise(cuts)
    ]
    from_left = shards[0]
    for shard in shards[1:]:
        from_left += shard
    while len(shards) > 1:
        shards = [
            *(a + b for a, b in zip(shards[::2], shards[1::2], strict=False)),
            *(shards[-1:] if len(shards) % 2 else []),
        ]
    for result in (from_left, shards[0]):
        assert_same_bits(result, columns)
        # Pieces of few rows do not stay by themselves.
        sizes = [piece.rows for piece in result.pieces]
        assert all(one + other >= 1_000 for one, other in pairwise(sizes))
        # All rows but those that wait at the end are packed.
        for piece in result.pieces[:-1]:
            assert any(not isinstance(column, packed.Plain) for column in piece.columns)


@pytest.mark.parametrize("rows", [7, ROWS])
def test_what_is_packed_keeps_no_larger_array_alive(rows):
    whole = np.random.default_rng(0).normal(size=10_000)
    result = PackedColumns.of({"part": whole[:rows]}, rows)
    (column,) = result.pieces[0].columns
    assert column.values.base is None


@pytest.mark.parametrize("rows", [3, packed.FEWEST_TO_COMPARE])
def test_shards_of_few_and_of_many_rows_join(rows):
    many, few = columns_of(ROWS, 0), columns_of(rows, 1)
    both = {name: np.concatenate([many[name], few[name]]) for name in many if name != "tokens"}
    for first, second in ((many, few), (few, many)):
        shards = []
        for columns in (first, second):
            own = {name: one for name, one in columns.items() if name != "tokens"}
            count = len(own["ratio"])
            shards.append((packed_where_many(own, count), count))
        whole = joined_columns(shards)
        assert_same_bits(
            whole,
            both
            if first is many
            else {name: np.concatenate([few[name], many[name]]) for name in both},
        )
