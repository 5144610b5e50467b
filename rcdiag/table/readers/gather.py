"""Rows that a reader makes one at a time are gathered into record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.table.arrow import BITS, FLOATS, IDS, experts, from_python, lists, ragged
from rcdiag.table.readers.reader import Dump, Rows
from rcdiag.table.schema import ENTROPY, KEPT_IDS, LOG_PROBS, ROUTED_EXPERTS
from rcdiag.table.trajectories import Ragged

# A batch ends with the row that brings it to this many tokens, prompts included: a few MB.
TOKENS_PER_BATCH = 500_000
ROWS_PER_BATCH = 8_192

TOKEN_KINDS = {"prompt_ids": IDS, "response_ids": IDS, "response_mask": BITS, "advantages": FLOATS}
NUMBER_KINDS = {
    "step": np.int64,
    "policy_version": np.int64,
    "top_k": np.int64,
    "reward": np.float64,
    "advantage": np.float64,
    "temperature": np.float64,
    "top_p": np.float64,
    "min_p": np.float64,
}


def gathering(
    rows_of: Callable[[Path, Dump], Iterable[tuple[int, dict[str, Any]]]],
) -> Callable[[Dump], Iterator[Rows]]:
    """Return the reader of dumps whose files `rows_of` reads, one by itself; see `gather`."""

    def read(dump: Dump) -> Iterator[Rows]:
        for file in dump.files:
            yield from gather(rows_of(file, dump), file)

    return read


def gather(
    rows: Iterable[tuple[int, dict[str, Any]]], file: Path, record: str = "line"
) -> Iterator[Rows]:
    """Yield the rows of one file, about TOKENS_PER_BATCH tokens at a time.

    A row comes with the number of its record in the file. It maps names of columns to values:
    arrays for columns of tokens, [tokens], a list for each token for kept ids, else a number or a
    text. What is None or left out is
    null; a column that no row of a batch has is not in that batch.
    """
    numbers: list[int] = []
    held: list[dict[str, Any]] = []
    tokens = 0
    for number, row in rows:
        numbers.append(number)
        held.append(row)
        prompt = row.get("prompt_ids")
        tokens += len(row["response_ids"]) + (0 if prompt is None else len(prompt))
        tokens += sum(len(value.values) for value in row.values() if isinstance(value, Ragged))
        if tokens >= TOKENS_PER_BATCH or len(held) >= ROWS_PER_BATCH:
            yield Rows(batch_of(held), file, np.array(numbers, np.int64), record)
            numbers, held, tokens = [], [], 0
    if held:
        yield Rows(batch_of(held), file, np.array(numbers, np.int64), record)


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as a record batch, with the columns that at least one of them has."""
    names = dict.fromkeys(name for row in rows for name in row)
    values = {name: [row.get(name) for row in rows] for name in names}
    columns = {
        name: _column(name, column)
        for name, column in values.items()
        if any(value is not None for value in column)
    }
    return pa.RecordBatch.from_pydict(columns)


def _column(name: str, values: list[Any]) -> pa.Array:
    of_floats = LOG_PROBS.fullmatch(name) or ENTROPY.fullmatch(name)
    if kind := FLOATS if of_floats else TOKEN_KINDS.get(name):
        return lists(values, kind)
    if ROUTED_EXPERTS.fullmatch(name):  # [tokens, layers, experts] each; rows without any are null
        known = [value for value in values if value is not None]
        column = experts(np.concatenate(known), np.array([len(value) for value in known]))
        return _with_nulls(column, values)
    if KEPT_IDS.fullmatch(name):
        kept: list[Ragged] = [value for value in values if value is not None]
        by_token = ragged(
            np.concatenate([value.values for value in kept]),
            np.concatenate([value.lengths for value in kept]),
        )
        return _with_nulls(ragged(by_token, np.array([len(value) for value in kept])), values)
    if number := NUMBER_KINDS.get(name):
        return from_python(values, pa.from_numpy_dtype(np.dtype(number)))
    return from_python(values)


def _with_nulls(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    """Put nulls into a column where `values`, the others of which it has, are None."""
    present = [value is not None for value in values]
    places = np.cumsum(present) - 1
    rows = [int(at) if there else None for at, there in zip(places, present, strict=True)]
    return column.take(from_python(rows, pa.int64()))
