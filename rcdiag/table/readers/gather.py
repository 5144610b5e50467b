"""Collect rows that a reader yields one at a time into record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.formats import listed
from rcdiag.table.arrow import (
    BITS,
    FLOATS,
    IDS,
    experts,
    from_python,
    lengths_and_nulls,
    lists,
    ragged,
)
from rcdiag.table.readers.reader import Dump, Rows
from rcdiag.table.schema import (
    EXPERTS,
    LISTS_OF_IDS,
    NUMBER,
    TOKEN_FLOATS,
    TOKEN_IDS,
    column_spec,
)
from rcdiag.table.trajectories import Ragged

# A batch ends with the row that reaches this many tokens, prompts included: a few MB.
TOKENS_PER_BATCH = 500_000
ROWS_PER_BATCH = 8_192

WHOLE_NUMBERS = ("step", "policy_version", "top_k")


def gathering(
    rows_of: Callable[[Path, Dump], Iterable[tuple[int, dict[str, Any]]]],
    without_rows: str = "",
    hint: str = "",
) -> Callable[[Dump], Iterator[Rows]]:
    """Return a reader of dumps whose files `rows_of` reads one at a time; see `gather`.

    If a dump has no rows, the error says what it is (`without_rows`) and what to dump (`hint`).
    """

    def read(dump: Dump) -> Iterator[Rows]:
        found = False
        for file in dump.files:
            for rows in gather(rows_of(file, dump), file):
                found = True
                yield rows
        if not found and without_rows:
            raise RcdiagError(f"{listed(dump.files)}: {without_rows}", hint=hint)

    return read


def gather(
    rows: Iterable[tuple[int, dict[str, Any]]], file: Path, record: str = "line"
) -> Iterator[Rows]:
    """Yield the rows of one file in batches of about TOKENS_PER_BATCH tokens.

    Each row comes with its record number in the file. A row maps column names to values: arrays
    [tokens] for token columns, one list per token for kept ids, else a number or text. A value that
    is None or missing is null; a column that no row of a batch has is left out.
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
        chosen = row.get("rollout_routed_experts")  # hundreds of numbers for each token
        tokens += 0 if chosen is None else chosen.size
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
    spec = column_spec(name)
    if spec is TOKEN_IDS:
        return lists(values, IDS)
    if spec is TOKEN_FLOATS:
        return lists(values, FLOATS)
    if name == "response_mask":
        return lists(values, BITS)
    known = [value for value in values if value is not None]
    if spec is EXPERTS:  # each is [tokens, layers, experts]
        by_token = pa.concat_arrays([experts(one, np.array([len(one)])).values for one in known])
        return ragged(by_token, *lengths_and_nulls(values))
    if spec is LISTS_OF_IDS:
        ids = np.concatenate([kept.values for kept in known])
        by_token = ragged(ids, np.concatenate([kept.lengths for kept in known]))
        return ragged(by_token, *lengths_and_nulls(values))
    if name in WHOLE_NUMBERS:
        return from_python(values, pa.int64())
    return from_python(values, pa.float64() if spec is NUMBER else None)
