"""Padded matrices of prompts and responses, as trainers hold them, are cut by masks beside them.

verl's attention_mask covers prompts, padded on their left, and responses, padded on their right;
TRL has one mask for each. What is cut is a column of a list for each row, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS, names_for
from rcdiag.table.padded_rows import PADDED_ROWS, find_padding, masks_padding
from rcdiag.table.padding import Cut

ATTENTION, COMPLETION, OF_PROMPTS = "attention_mask", "completion_mask", "prompt_mask"
# What is noted of a table that was cut, with the mask that said where.
CUT = "rows are cut to where `{mask}` is 1: padding of prompts and responses is left out"
CUT_TAILS = (
    "rows are cut before their padding: a tail of one token where `{mask}` is 0 and every log-prob "
    "is 0"
)
# Masks of padding alone: 1 for every token of a response, those of tools included.
OF_RESPONSES = (COMPLETION, ATTENTION)


def cuts_of(
    matrices: Mapping[str, NDArray], where: Callable[[int], str]
) -> dict[str, pa.ListArray | None]:
    """Cut padded matrices, [rows, width], by the mask that says where their tokens stand.

    Returns the columns that are cut, and None for a mask that says nothing more. `where` names a
    row in errors.
    """
    tokens = one_of("response_ids", matrices)
    if tokens is None:
        return {}
    width = matrices[tokens].shape[1]
    prompt = one_of("prompt_ids", matrices)
    before = 0 if prompt is None else matrices[prompt].shape[1]
    attention = matrices.get(ATTENTION, np.empty((0, 0)))
    # An attention mask of a response alone may be another one, such as that of its sampled tokens.
    wide = attention.shape[1] > width and (prompt is None or attention.shape[1] == before + width)
    cuts: dict[str, pa.ListArray | None] = {}
    if prompt is not None:
        mask = attention[:, :before] if wide else matrices.get(OF_PROMPTS)
        if mask is not None and mask.shape[1] == before:
            cuts |= _cut([prompt], matrices, mask, where if wide else None, behind=False)
    responses = [
        column
        for column, values in matrices.items()
        if values.shape[1] == width and column not in (prompt, OF_PROMPTS, *OF_RESPONSES)
    ]
    for by in OF_RESPONSES:
        whole = by == ATTENTION and wide
        if by in matrices and (whole or matrices[by].shape[1] == width):
            mask = matrices[by][:, -width:]
            if cut_by := _cut(responses, matrices, mask, where if whole else None, behind=True):
                return {**cuts, **cut_by, **dict.fromkeys(set(OF_RESPONSES) & set(matrices))}
    return cuts


def cuts_of_tails(matrices: Mapping[str, NDArray]) -> tuple[str, dict[str, pa.ListArray]] | None:
    """Cut padded responses whose only mask is that of sampled tokens, and return it with the cuts.

    Such a mask is 0 at tools' tokens too. Padding for certain is the tail of a row where it is 0,
    every token is the one that fills up, and every log-prob is exactly 0. None where rows are not
    padded, or no mask leaves their padding out.
    """
    tokens = one_of("response_ids", matrices)
    if tokens is None:
        return None
    shape = matrices[tokens].shape
    alike = {n: m for n, m in matrices.items() if m.shape == shape and n != OF_PROMPTS}
    log_probs = [m for name, m in alike.items() if LOOKS_LIKE_LOG_PROBS.search(name)]
    ids, empty = matrices[tokens], np.all([m == 0 for m in log_probs or [np.zeros(shape)]], axis=0)
    first = [list(m[:PADDED_ROWS]) for m in log_probs or [np.zeros(shape)]]
    found = find_padding(list(ids[:PADDED_ROWS]), first)
    if found is None:
        return None
    padding, seen = found
    masks = [
        name
        for name, mask in alike.items()
        if "mask" in name and np.isin(mask, (0, 1)).all()
        if masks_padding(list(mask[:PADDED_ROWS]), seen)
    ]
    if len(masks) != 1:
        return None
    tail = empty & (ids == padding.token) & (alike[masks[0]] == 0)
    lengths = shape[1] - np.cumprod(tail[:, ::-1], axis=1).sum(1)
    blocks, prompt = Cut.from_lengths(lengths, shape[1]), one_of("prompt_ids", matrices)
    return masks[0], {
        name: blocks.column(mask_as_bits(name, values))
        for name, values in alike.items()
        if name != prompt
    }


def one_of(column: str, matrices: Mapping[str, NDArray]) -> str | None:
    """Return the matrix that has a column's name, or one that other programs give to it alone."""
    names = [column, *(known.name for known in names_for(column).values() if not known.whole)]
    return next((name for name in names if name in matrices), None)


def _cut(
    columns: Sequence[str],
    matrices: Mapping[str, NDArray],
    mask: NDArray,
    where: Callable[[int], str] | None,
    *,
    behind: bool,
) -> dict[str, pa.ListArray | None]:
    """Cut columns to where a mask is 1.

    Where that is not one block in each row nothing is cut. With `where` such a row is refused, and
    so is one whose padding is at both ends or, if it should stand `behind`, before the tokens.
    """
    tokens = mask != 0
    blocks = Cut.from_mask(tokens)
    holes = blocks.rows_with_holes(tokens)
    if where is not None:
        # Prompts are padded at one end, responses behind their tokens.
        free = (blocks.starts > 0) & (blocks.lengths > 0)
        if not behind:
            free &= blocks.starts + blocks.lengths < blocks.width
        holes = np.union1d(holes, np.flatnonzero(free))
    if len(holes) and where is not None:
        raise RcdiagError(
            f"{where(int(holes[0]))}: `{ATTENTION}` is not one block of ones at an end of "
            f"`{columns[0]}`",
            hint="rows that are packed, or padded in another way, are not what a trainer writes",
        )
    if len(holes):
        return {}
    return {column: blocks.column(mask_as_bits(column, matrices[column])) for column in columns}


def mask_as_bits(column: str, values: NDArray) -> NDArray:
    """Return a mask that a trainer keeps as floats as whole numbers."""
    if "mask" in column and values.dtype.kind == "f" and np.isin(values, (0, 1)).all():
        return values.astype(np.uint8)
    return values
