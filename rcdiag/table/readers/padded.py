"""Cut the padded matrices of trainers into rows of their true lengths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import BITS, from_numpy, ragged
from rcdiag.table.padding import Cut
from rcdiag.table.readers.reader import Notes, Rows
from rcdiag.table.readers.safe import Jagged, StoredTensor
from rcdiag.table.token_columns import check_lengths, check_mask, in_file
from rcdiag.table.trajectories import starts_of

# Number of matrix elements whose rows are cut at a time.
ELEMENTS_PER_BATCH = 1 << 20

# Note for a batch that does not separate sampled tokens from those of tools.
NO_MASK = "no mask in the file: every response token counts as sampled, those of tools too"

BELONG_TOGETHER = "columns of one batch belong together; write the dump again"

Where = Callable[[int], str]  # row in a batch, from 0 -> file and row as errors name them
RowIndex = NDArray[np.int64]


def batches_of(rows: RowIndex, widths: NDArray[np.integer] | int) -> Iterator[RowIndex]:
    """Split rows into runs of about ELEMENTS_PER_BATCH tokens; `widths` are tokens per row."""
    width = np.broadcast_to(np.asarray(widths, np.int64), rows.shape)
    number = np.cumsum(np.maximum(width, 1)) // ELEMENTS_PER_BATCH
    yield from np.split(rows, np.flatnonzero(np.diff(number)) + 1) if len(rows) else ()


def rows_in_parts(
    path: Path,
    rows: RowIndex,
    widths: NDArray[np.integer] | int,
    facts: Mapping[str, pa.Array],
    token_columns: Callable[[RowIndex, Where], dict[str, Any]],
) -> Iterator[Rows]:
    """Yield the rows of one file's batch, a few MB at a time; `widths` are tokens per row.

    `facts` are the columns with one value per row of the whole batch. `token_columns` returns the
    columns with one value per token for some rows; it also gets a function that names a row.
    """
    for part in batches_of(rows, widths):

        def place(row: int, part: RowIndex = part) -> str:
            return f"{path}, row {int(part[row])}"

        columns = token_columns(part, place)
        columns |= {name: values.take(from_numpy(part)) for name, values in facts.items()}
        yield Rows(pa.RecordBatch.from_pydict(columns), path, part)


def check_rows(columns: Mapping[str, Sized], of: str, path: Path) -> None:
    """Raise an error if a column's number of rows differs from that of the column `of`."""
    for name, column in columns.items():
        if len(column) != len(columns[of]):
            raise RcdiagError(
                f"{path}: {name} has {len(column)} rows, {of} has {len(columns[of])}",
                hint=BELONG_TOGETHER,
            )


def named_step(name: str, pattern: re.Pattern[str], rows: int, notes: Notes) -> dict[str, pa.Array]:
    """Return the step in a file name as a column; empty if the pattern does not match."""
    match = pattern.search(name)
    if match is None:
        return {}
    notes.change("steps are those in the names of files", rows)
    return {"step": from_numpy(np.full(rows, int(match[1]), np.int64))}


def width_of_experts(experts: StoredTensor | Jagged | None) -> int:
    """Return how many token ids take as much memory as the experts of one token."""
    if experts is None:
        return 0
    shape = experts.values.shape[1:] if isinstance(experts, Jagged) else experts.shape[2:]
    return int(np.prod(shape, dtype=np.int64)) // 4


def block(mask: NDArray[Any], aligned: str, name: str, where: Where) -> Cut:
    """Return the block of ones in each row of a mask [rows, width]; an error if it is not one.

    `aligned` is the side that the block must touch: "left" for rows padded on the right, "right"
    for rows padded on the left.
    """
    ones = mask == 1
    cut = Cut.from_mask(ones)
    others = np.flatnonzero((mask != ones).any(1))  # rows with values other than 0 and 1
    misfits = np.union1d(others, cut.misfits(ones, aligned))
    if len(misfits):
        raise RcdiagError(
            f"{where(int(misfits[0]))}: {name} is not one block of ones on the {aligned}, with "
            "padding on the other side",
            hint="packed rows, or rows padded in another way, are not what this trainer writes",
        )
    return cut


def cut_rows(
    tensor: StoredTensor | Jagged, rows: RowIndex, span: Cut, name: str, where: Where
) -> NDArray[Any]:
    """Return the concatenated values of some rows in their blocks, [tokens, ...]."""
    if isinstance(tensor, Jagged):
        check_lengths(
            name, tensor.lengths[rows], span.lengths, in_file(where), unexplained=BELONG_TOGETHER
        )
        return tensor.numpy(rows)
    matrix = rows_of(tensor, rows)
    ends = span.starts + span.lengths
    if matrix.ndim < 2 or (len(ends) and ends.max() > matrix.shape[1]):
        raise RcdiagError(
            f"{where(0)}: {name} has the shape {list(tensor.shape)}, too narrow for its tokens",
            hint=BELONG_TOGETHER,
        )
    return span.values(matrix)


def token_column(
    tensor: StoredTensor | Jagged, rows: RowIndex, span: Cut, name: str, where: Where
) -> pa.ListArray:
    """Return a list column with one value per token for some rows."""
    return ragged(cut_rows(tensor, rows, span, name, where), span.lengths)


def after_prompts(
    tensor: StoredTensor | Jagged,
    rows: RowIndex,
    prompt: Cut | None,
    response: Cut,
    name: str,
    where: Where,
) -> NDArray[Any]:
    """Return the responses' values in a column that also covers prompts.

    In a matrix they are at `response`; in jagged rows they follow as many values as prompts have.
    """
    if isinstance(tensor, StoredTensor):
        return cut_rows(tensor, rows, response, name, where)
    assert prompt is not None
    tokens = prompt.lengths + response.lengths
    check_lengths(name, tensor.lengths[rows], tokens, in_file(where), unexplained=BELONG_TOGETHER)
    starts = tensor.starts[rows] + prompt.lengths
    return Jagged(tensor.values, starts, response.lengths).numpy(slice(None))


def rows_of(tensor: StoredTensor, rows: RowIndex) -> NDArray[Any]:
    """Return some rows of a tensor; a view if they are consecutive."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return tensor[int(rows[0]) : int(rows[-1]) + 1].numpy()
    return tensor[rows].numpy()


def mask_column(
    tensor: StoredTensor | Jagged,
    rows: RowIndex,
    span: Cut,
    name: str,
    where: Where,
    *,
    before: int = 0,
) -> pa.ListArray:
    """Return a mask as a list column of 0 and 1, whatever its type.

    A mask that is not 0 at padding is an error: its trainer trained on tokens that are not in the
    row. The first `before` columns are not checked.
    """
    values = cut_rows(tensor, rows, span, name, where)
    check_mask(name, values, span.lengths, in_file(where))
    column = ragged(values.astype(BITS), span.lengths)
    if isinstance(tensor, StoredTensor):
        _check_padding(rows_of(tensor, rows)[:, before:], values, span, name, where)
    return column


def _check_padding(
    matrix: NDArray[Any], values: NDArray[Any], span: Cut, name: str, where: Where
) -> None:
    """Raise an error if a mask [rows, width] has more ones than `values`, those in its blocks."""
    if np.count_nonzero(matrix) == np.count_nonzero(values):
        return
    flagged = np.count_nonzero(matrix, axis=1)
    inside = np.add.reduceat(np.append(values != 0, False), starts_of(span.lengths), dtype=np.int64)
    row = int(np.argmax(flagged != np.where(span.lengths > 0, inside, 0)))
    raise RcdiagError(
        f"{where(row)}: {name} is not 0 at padding, or elsewhere outside of the response",
        hint="a mask and its tokens belong together; write the dump again",
    )


def sums(tensor: StoredTensor | Jagged, rows: RowIndex) -> NDArray[np.float64]:
    """Return the sum of each of some rows; a 1-dimensional tensor already holds the sums."""
    if isinstance(tensor, Jagged):
        totals = [tensor.row(int(row)).numpy().sum(dtype=np.float64) for row in rows]
        return np.array(totals, np.float64)
    values = rows_of(tensor, rows)
    width = values.size // max(len(values), 1)
    sums: NDArray[np.float64] = values.reshape(len(values), width).sum(1, dtype=np.float64)
    return sums
