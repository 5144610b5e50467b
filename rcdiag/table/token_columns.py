"""Columns with a value for each token: of padded matrices that are cut, or of lists of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.table.arrow import as_numpy, lengths_of, ragged
from rcdiag.table.decode import MOST_TOKEN_IDS
from rcdiag.table.padding import Cut
from rcdiag.table.recorder_padding import (
    ATTENTION,
    IDS,
    LENGTHS,
    MASK,
    PROMPT,
    PROMPT_MASK,
    as_matrix,
    kind_of,
    wrong,
)
from rcdiag.table.schema import EXPERTS, TOKEN_FLOATS, column_spec

TO_CUT = f"give {LENGTHS}=, {ATTENTION}= or {MASK}=, or a list of rows without padding"


def is_rows(value: Any) -> bool:
    """Tell whether a value is a list or an array with an entry for each row."""
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def token_column(
    name: str,
    value: Any,
    rows: int,
    where: Cut | None,
    lengths: NDArray[np.int64] | None = None,
) -> pa.ListArray:
    """Return a list column of the tokens' values; `lengths` are those that rows must have."""
    _check_rows(name, value, rows)
    matrix = value if where is None else as_matrix(value)
    if where is not None and isinstance(matrix, np.ndarray) and matrix.shape[1] == where.width:
        value = matrix
    if isinstance(value, np.ndarray):
        column = _of_matrix(name, value, where, lengths)
    else:
        column = _of_lists(name, value)
    if lengths is not None:
        _check_lengths(name, column, lengths)
    return column


def _check_rows(name: str, value: Any, rows: int) -> None:
    first = next((row for row in value if row is not None), None) if is_rows(value) else 0
    if first is not None and not hasattr(first, "__len__"):
        hint = "a list of rows, or a matrix [rows, width]"
        if name == "advantages":
            hint += "; of one advantage for each response: advantage=..."
        raise wrong(name, None, f"it is {kind_of(value)}, not one value for each token", hint)
    if len(value) != rows:
        raise wrong(
            name, None, f"it has {len(value)} rows, `{IDS}` has {rows}", "give one batch in each"
        )


def _of_matrix(
    name: str, matrix: NDArray[Any], where: Cut | None, lengths: NDArray[np.int64] | None
) -> pa.ListArray:
    """Return a list column of what is no padding in a matrix."""
    width = matrix.shape[1]
    if where is None and lengths is not None and (lengths == width).all():
        where = Cut.from_lengths(lengths, width)
    if where is None:
        hint = TO_CUT
        if name == PROMPT:
            hint = f"give {PROMPT_MASK}=, or {ATTENTION}= of prompt and response, or lists"
        raise wrong(name, None, f"{kind_of(matrix)} is padded, and nothing says where", hint)
    if where.width != width:
        raise wrong(
            name,
            None,
            f"it has {width} columns, and what cuts it {where.width}",
            f"column j of every matrix belongs to column j of `{IDS}`",
        )
    flat = where.values(matrix)
    if column_spec(name) is EXPERTS:
        return _nested(name, flat.reshape(len(flat), -1), where.lengths)
    _check_flat(name, flat, where.lengths)
    return ragged(_typed(name, flat), where.lengths)


def _of_lists(name: str, value: list[Any]) -> pa.ListArray:
    null = np.array([row is None for row in value], dtype=np.bool_)
    lengths = np.array([0 if row is None else len(row) for row in value], dtype=np.int64)
    filled = [row for row in value if row is not None]
    if column_spec(name) is EXPERTS:
        parts = [
            _experts_of(name, number, row) for number, row in enumerate(value) if row is not None
        ]
        parts = [part for part in parts if len(part)]
        if len({part.shape[1] for part in parts}) > 1:
            odd = next(part.shape[1] for part in parts if part.shape[1] != parts[0].shape[1])
            raise wrong(
                name,
                None,
                f"{parts[0].shape[1]} experts of a token in one row and {odd} in another",
                "layers x k is the same for all tokens",
            )
        flat = np.concatenate(parts) if parts else np.zeros((0, 0), np.uint16)
        return _nested(name, flat, lengths)
    flat = _flat(name, filled)
    _check_flat(name, flat, lengths)
    column = ragged(_typed(name, flat), lengths)
    if null.any():
        if name in (IDS, MASK, PROMPT):
            raise wrong(name, int(np.argmax(null)), "None", "of no tokens it is an empty list")
        import pyarrow.compute as pc

        column = pc.if_else(pa.array(null), pa.scalar(None, column.type), column)
    return column


def _experts_of(name: str, number: int, row: Any) -> NDArray[Any]:
    """Return the experts of one row, [tokens, layers x k]."""
    try:
        return np.asarray(row).reshape(len(row), -1) if len(row) else np.zeros((0, 0), np.uint16)
    except ValueError as error:
        raise wrong(
            name, number, "its tokens have unlike numbers of experts", "layers x k for each token"
        ) from error


def _flat(name: str, rows: Sequence[Any]) -> NDArray[Any]:
    """Return the values of all rows behind each other; None among log-probs becomes NaN."""
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.concatenate(rows) if rows else np.zeros(0, np.float32)
    of_floats = column_spec(name) is TOKEN_FLOATS
    values = list(chain.from_iterable(rows))
    try:
        flat = np.array(values)
        if flat.dtype == object and of_floats:
            flat = np.array([np.nan if value is None else value for value in values], np.float64)
    except (ValueError, TypeError) as error:
        raise wrong(
            name, None, f"it is not one number for each token ({error})", "give lists of numbers"
        ) from error
    return flat if len(flat) else np.zeros(0, np.float32 if of_floats else np.int32)


def _check_flat(name: str, flat: NDArray[Any], lengths: NDArray[np.int64]) -> None:
    """Refuse values that cannot be what the column holds, with the row of the first."""
    spec = column_spec(name)
    if flat.ndim != 1:
        raise wrong(name, None, f"{flat.ndim} dimensions", "one number for each token is needed")
    if spec is TOKEN_FLOATS:
        if flat.dtype.kind != "f" and len(flat):
            raise wrong(name, None, f"it holds {flat.dtype}", "log-probs and their like are floats")
        return
    if name == MASK:
        bad = (flat != 0) & (flat != 1)
        hint = "a mask is 1 for tokens that the policy sampled and 0 for all others"
    else:
        if flat.dtype.kind not in "iu" and len(flat):
            raise wrong(name, None, f"it holds {flat.dtype}", "whole numbers are needed")
        least, most = 0, MOST_TOKEN_IDS - 1
        hint = f"token ids are 0 to {most:,}; padding is cut by lengths or a mask"
        if name == "policy_version":
            least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
            hint = "versions of weights for each token are 32-bit numbers"
        bad = (flat < least) | (flat > most)
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise wrong(name, row, f"it holds {flat[at]}", hint)


def _typed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values with the type in which they are stored, never in the memory of the caller.

    Floats are stored as float32 where that changes none of them, else as float64.
    """
    if name == MASK:
        return values.astype(np.uint8)
    if column_spec(name) is not TOKEN_FLOATS:
        return values.astype(np.int32)
    if values.dtype == np.float64:
        with np.errstate(over="ignore"):
            short = values.astype(np.float32)
        same = short == values
        is_same = same.all() or np.isnan(values[~same]).all()
        return short if is_same else values.copy()
    return values.astype(np.float32)


def _nested(name: str, flat: NDArray[Any], lengths: NDArray[np.int64]) -> pa.ListArray:
    """Return experts, [tokens, layers x k], as lists of lists for each row."""
    if flat.dtype.kind not in "iu" and flat.size:
        raise wrong(name, None, f"it holds {flat.dtype}", "numbers of experts are whole")
    if flat.size and (flat.min() < 0 or flat.max() > np.iinfo(np.uint16).max):
        raise wrong(name, None, f"from {flat.min()} to {flat.max()}", "experts count from 0")
    by_token = ragged(flat.astype(np.uint16).ravel(), np.full(len(flat), flat.shape[1]))
    return ragged(by_token, lengths)


def _check_lengths(name: str, column: pa.ListArray, lengths: NDArray[np.int64]) -> None:
    known = as_numpy(column.is_valid())
    differ = known & (lengths_of(column) != lengths)
    if differ.any():
        row = int(np.argmax(differ))
        raise wrong(
            name,
            row,
            f"{lengths_of(column)[row]} values for {lengths[row]} response tokens",
            "off by one usually means that the end-of-sequence token was dropped on one side",
        )
