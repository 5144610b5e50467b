"""Rows of several dumps of one run are matched by their tokens, where nothing else tells them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.schema import LOG_PROBS, column_setting
from rcdiag.table.table import Table

Hashes = NDArray[np.uint64]
# Columns beside log-probs for which it matters which rows of two dumps belong together.
NUMBERS = ("reward", "advantage", "advantages")
# An odd number that mixes the hash of one column before that of another is added.
MIX = np.uint64(0x9E3779B97F4A7C15)


def matched_rows(dumps: Sequence[Table]) -> list[NDArray[np.int64]]:
    """Return for each dump its rows' numbers in the first one, [rows].

    Rows match that have the same response, and the same prompt and step where all dumps have them;
    of several equal rows the first matches the first. A row without a match gets a number that no
    row of the first dump has.
    """
    having = [set(dump.schema.names) for dump in dumps]
    names = ["response_ids"]
    names += [name for name in ("prompt_ids", "step") if all(name in own for own in having)]
    first = _keys(dumps[0], names)
    matched = [np.arange(dumps[0].num_rows)]
    free = dumps[0].num_rows
    for dump in dumps[1:]:
        keys = _keys(dump, names)
        rows = _partners(first, keys)
        _check_ambiguity(dumps[0], first, dump, keys)
        alone = rows < 0
        rows[alone] = free + np.arange(int(alone.sum()))
        free += int(alone.sum())
        matched.append(rows)
    return matched


def _keys(dump: Table, names: Sequence[str]) -> Hashes:
    """Return a hash of some columns of every row, [rows]."""
    parts = []
    for batch in dump.batches(names):
        key = np.zeros(batch.table.num_rows, np.uint64)
        for name in names:
            kind = pl.Int64 if name == "step" else pl.List(pl.Int64)
            values = pl.Series(batch.table[name].combine_chunks()).cast(kind)
            key = key * MIX + values.hash(seed=0).to_numpy()
        parts.append(key)
    return np.concatenate(parts)


def _numbered(keys: Hashes) -> NDArray[np.int64]:
    """Return for every row how many rows before it have its key, [rows]."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    start = np.maximum.accumulate(np.where(new, np.arange(len(keys)), 0))
    number = np.empty(len(keys), np.int64)
    number[order] = np.arange(len(keys)) - start
    return number


def _partners(first: Hashes, later: Hashes) -> NDArray[np.int64]:
    """Return for every later row the row of the first dump with its key, or -1, [rows]."""
    keys = np.concatenate([first, later])
    number = np.concatenate([_numbered(first), _numbered(later)])
    _, code = np.unique(keys, return_inverse=True)
    place = code * (int(number.max()) + 1) + number  # one number for key and repetition
    order = np.argsort(place[: len(first)])
    ordered = place[: len(first)][order]
    wanted = place[len(first) :]
    at = np.minimum(np.searchsorted(ordered, wanted), len(first) - 1)
    return np.where(ordered[at] == wanted, order[at], -1)


def _check_ambiguity(one: Table, one_keys: Hashes, other: Table, other_keys: Hashes) -> None:
    """Refuse equal rows of which one dump has more, where it matters which belong together.

    Equal rows of both dumps are in the same order, but where one has more nothing tells which are
    missing. It matters where the rows that may be left over differ in their numbers.
    """
    own, own_counts = np.unique(one_keys, return_counts=True)
    others, other_counts = np.unique(other_keys, return_counts=True)
    shared, at, other_at = np.intersect1d(own, others, return_indices=True)
    more = own_counts[at] - other_counts[other_at]
    doubtful, more = shared[more != 0], more[more != 0]
    if not len(doubtful):
        return
    differ = _differing(one, one_keys, doubtful)
    bad = np.where(more > 0, differ, _differing(other, other_keys, doubtful))
    if not bad.any():
        return
    key = doubtful[np.argmax(bad)]
    rows, other_rows = np.flatnonzero(one_keys == key), np.flatnonzero(other_keys == key)
    raise RcdiagError(
        f"{one.where(int(rows[0]))}: {len(rows)} rows of this dump have the same tokens, and "
        f"{len(other_rows)} rows of {other.name}; they differ otherwise, and nothing tells which "
        f"belong together ({int(bad.sum())} such cases)",
        hint=f"give both dumps ids: {column_setting({'sample_id': 'NAME'})}",
    )


def _differing(table: Table, keys: Hashes, doubtful: Hashes) -> NDArray[np.bool_]:
    """Tell for keys of several rows whether those rows differ in their numbers, [keys]."""
    names = [name for name in table.columns if LOG_PROBS.fullmatch(name) or name in NUMBERS]
    if not names:
        return np.zeros(len(doubtful), np.bool_)
    low = np.full(len(doubtful), np.iinfo(np.uint64).max, np.uint64)
    high = np.zeros(len(doubtful), np.uint64)
    for batch in table.batches(names):
        own = keys[batch.first_row : batch.first_row + batch.table.num_rows]
        at = np.minimum(np.searchsorted(doubtful, own), len(doubtful) - 1)
        rows = np.flatnonzero(doubtful[at] == own)
        if not len(rows):
            continue
        values = pl.DataFrame(batch.table.take(rows)).hash_rows(seed=0).to_numpy()
        np.minimum.at(low, at[rows], values)
        np.maximum.at(high, at[rows], values)
    return low < high
