"""Padded batches for an engine, and score columns from an engine's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories


def whole_sequences(
    trajectories: Trajectories,
) -> tuple[list[NDArray[np.int32]], NDArray[np.int64]]:
    """Return prompt and response of each row as one array of ids, and each response's start."""
    assert trajectories.prompt_ids is not None
    prompts, responses = trajectories.prompt_ids, trajectories.response_ids
    rows = [
        np.concatenate([prompts.row(index), responses.row(index)])
        for index in range(len(trajectories))
    ]
    return rows, prompts.lengths


def gather_scores(
    trajectories: Trajectories,
    rows: Sequence[NDArray[np.float32] | None],
    *,
    entropy: bool,
    top_k: int,
) -> Scores:
    """Concatenate the score matrices of all rows into columns.

    A row's matrix is [response tokens, 1 + entropy + 2 top_k]: the token's log-prob, the entropy,
    the largest log-probs, and their token ids; None for a row without response tokens. A matrix of
    another shape is refused, since it would shift the scores of all rows after it.
    """
    width = 1 + entropy + 2 * top_k
    empty = np.zeros((0, width), dtype=np.float32)
    numbers, wanted = trajectories.row, trajectories.response_ids.lengths
    hint = (
        "this version of the engine returns something other than rcdiag asked for; please report "
        "it with the versions of both"
    )
    if len(rows) != len(numbers):
        raise RcdiagError(
            f"rows {numbers[0]} to {numbers[-1]}: the engine returned scores for {len(rows)} of "
            f"these {len(numbers)} rows",
            hint,
        )
    matrices = [empty if row is None else row for row in rows]
    for number, row, matrix, length in zip(numbers, rows, matrices, wanted, strict=True):
        if matrix.shape != (length, width):
            returned = "no scores" if row is None else f"scores of shape {matrix.shape}"
            raise RcdiagError(
                f"row {number}: the engine returned {returned} for {length} response tokens with "
                f"{width} values each",
                hint,
            )
    table = np.concatenate([empty, *matrices])
    first = 1 + entropy
    return Scores(
        log_probs=np.ascontiguousarray(table[:, 0]),
        entropy=np.ascontiguousarray(table[:, 1]) if entropy else None,
        top_log_probs=table[:, first : first + top_k] if top_k else None,
        top_ids=table[:, first + top_k :].astype(np.int32) if top_k else None,
    )


def length_buckets(lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of rows of similar length, longest first.

    A bucket has at most `batch_tokens` tokens with padding, but at least one row. Rows of length 0
    have nothing to score and are left out.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        count = max(batch_tokens // padded_width(int(lengths[order[start]])), 1)
        yield order[start : start + count]
        start += count


def padded_width(longest: int) -> int:
    """Round a length up to one of 16 widths per octave: 3% of padding on average.

    Kernels are compiled and cached for each shape, and oneDNN keeps 4 MB for every bfloat16 shape
    (measured), so batches should have few different widths.
    """
    step = max(1 << (longest.bit_length() - 5), 1) if longest >= 32 else 1
    return -(-longest // step) * step


def padded(rows: Sequence[NDArray[np.integer]], context: int | None) -> NDArray[np.int64]:
    """Return token ids [rows, width], padded on the right with 0, within the model's context."""
    longest = max(len(row) for row in rows)
    width = padded_width(longest)
    if context is not None:
        width = max(min(width, context), longest)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids
