"""Hashes of ids differ for different ids, and do not depend on how a column is sliced."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.table.grouping import hashed_rows
from rcdiag.table.hashing import hashed_lists, hashed_texts, mixed
from rcdiag.table.trajectories import Ragged


def array(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


@given(st.lists(st.text(max_size=40), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_only_equal_texts_have_equal_hashes_in_any_slice(
    texts: list[str], first: int, length: int
) -> None:
    hashes = hashed_texts(array(texts))
    assert len(set(hashes.tolist())) == len(set(texts))
    part = hashed_texts(array(texts).slice(first, length))
    assert part.tolist() == hashes[first : first + length].tolist()


def test_texts_that_differ_in_one_byte_have_different_hashes() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "b" * 7, "b" * 8, "b" * 9, "c" * 8 + "d", "d" * 8 + "c"]
    assert len(set(hashed_texts(array(texts)).tolist())) == len(texts)


def test_a_million_ids_do_not_collide() -> None:
    ids = array([f"prompt-{number}" for number in range(1_000_000)])
    assert len(np.unique(hashed_texts(ids))) == len(ids)


def test_the_hash_of_a_text_is_the_one_of_its_words() -> None:
    (value,) = hashed_texts(array(["abcdefgh!"]))
    start = mixed(np.array([9], np.uint64))
    first = mixed(start ^ np.frombuffer(b"abcdefgh", "<u8"))
    assert value == mixed(first ^ np.frombuffer(b"!" + bytes(7), "<u8"))[0]


def test_lists_are_hashed_by_their_numbers_in_order() -> None:
    rows = [[1, 2, 3], [3, 2, 1], [], [0], [0, 0], [1, 2, 3]]
    lists = Ragged(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]))
    hashes = hashed_lists(lists).tolist()
    assert hashes[0] == hashes[5]
    assert len(set(hashes)) == 5


def test_rows_are_hashed_by_all_numbers_and_null_differs() -> None:
    rows = [([1, 2], 3), ([1, 2], None), ([], 3), (None, 3), ([1, 2], 0), ([1], 3), ([1, 2], 3)]
    ids, steps = zip(*rows, strict=True)
    small = pa.table({"ids": pa.array(ids, pa.list_(pa.int32())), "step": pa.array(steps)})
    hashes = hashed_rows(small, ["ids", "step"]).tolist()
    assert hashes[0] == hashes[6]
    assert len(set(hashes)) == 6
    large = small.cast(pa.schema([("ids", pa.large_list(pa.int64())), ("step", pa.int32())]))
    assert hashed_rows(large, ["ids", "step"]).tolist() == hashes
    assert hashed_rows(small[2:], ["ids", "step"]).tolist() == hashes[2:]


def test_equal_floats_have_equal_hashes() -> None:
    values = pa.array([[0.0, 0.5], [-0.0, 0.5], [float("nan")], [None], [0.5, 0.0]])
    hashes = hashed_rows(pa.table({"values": values}), ["values"]).tolist()
    assert hashes[0] == hashes[1] != hashes[4]
    assert hashes[2] == hashes[3]
