"""Padding of prompts and responses: how it is recognised, and how matrices are cut.

A mask or lengths say where the tokens of a padded matrix, [rows, width], stand; never a token id,
because the id that fills up is often a legal token. verl's attention_mask covers prompts, padded on
their left, and responses, padded on their right; TRL has one mask for each.

Rows may be padded without a mask too (`find_padding`). Lists of one length in all rows that end in
one and the same token with log-probs of exactly 0 show it. Taken for data such padding adds tokens
without a mismatch, and halves every mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import ragged
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS, names_for
from rcdiag.table.schema import column_setting

if TYPE_CHECKING:
    import pyarrow as pa

ATTENTION, COMPLETION, OF_PROMPTS = "attention_mask", "completion_mask", "prompt_mask"
# What is noted of a table that was cut, with the mask that said where.
CUT = "rows are cut to where `{mask}` is 1: padding of prompts and responses is left out"
CUT_TAILS = (
    "rows are cut before their padding: a tail of one token where `{mask}` is 0 and every log-prob "
    "is 0"
)
# Masks of padding alone: 1 for every token of a response, those of tools included.
OF_RESPONSES = (COMPLETION, ATTENTION)
# Rows that are looked at.
PADDED_ROWS = 128
# Tokens of a tail that counts: the last token of a response alone is often certain.
SHORTEST_TAIL = 2
# A table is padded if at least this share of its rows have such a tail of one and the same token,
# with at least this share of all tokens: certain tokens at the end of a few rows are no padding.
SHARE_OF_ROWS, SHARE_OF_TOKENS = 0.25, 0.02


class Cut(Struct, frozen=True, eq=False):
    """Where the tokens of each row stand: a block of columns of a padded matrix."""

    starts: NDArray[np.int64]  # first column of each row's tokens, [rows]
    lengths: NDArray[np.int64]  # tokens of each row, [rows]
    width: int | None = None  # columns of the matrices, where it is known

    @classmethod
    def from_mask(cls, mask: NDArray[np.bool_]) -> Cut:
        """Return the cut whose blocks begin at each row's first 1 and hold as many tokens as ones.

        `misfits` names the rows where the ones are not that block.
        """
        starts = mask.argmax(1).astype(np.int64) if mask.shape[1] else np.zeros(len(mask), np.int64)
        return cls(starts, mask.sum(1, dtype=np.int64), mask.shape[1])

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer], width: int) -> Cut:
        """Return the cut of rows whose tokens begin in column 0."""
        return cls(np.zeros(len(lengths), np.int64), lengths.astype(np.int64), width)

    def __add__(self, columns: int) -> Cut:
        """Return the same tokens in a matrix that has more columns before them."""
        return Cut(self.starts + columns, self.lengths)

    def inside(self, width: int) -> NDArray[np.bool_]:
        """Return 1 for every place that is no padding, [rows, width]."""
        place = np.arange(width)
        ends = self.starts + self.lengths
        return (place >= self.starts[:, None]) & (place < ends[:, None])

    def misfits(self, mask: NDArray[np.bool_], side: str = "") -> NDArray[np.int64]:
        """Return the rows whose ones in a mask are not one block, ascending.

        With a `side`, "left", "right" or "either", so are those where the block is not there.
        """
        width = mask.shape[1]
        wrong = (self.inside(width) != mask).any(1)
        if side:
            before, behind = self.starts, width - self.starts - self.lengths
            gaps = {"left": before, "right": behind, "either": np.minimum(before, behind)}
            wrong |= (gaps[side] > 0) & (self.lengths > 0)
        return np.flatnonzero(wrong)

    def values(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows behind each other, without padding, [tokens, ...]."""
        return matrix[self.inside(matrix.shape[1])]

    def column(self, matrix: NDArray[Any]) -> pa.ListArray:
        """Return a list column of each row's values, without padding."""
        return ragged(self.values(matrix), self.lengths)


class Padding(Struct, frozen=True):
    """What fills up the rows of a table to one length, and the column that masks it."""

    width: int  # tokens of every row
    token: int  # the id that fills up
    rows: int  # rows that were looked at
    padded: int  # rows of these that are filled up
    mask: str = ""  # the file's column that is 0 there

    def sentence(self) -> str:
        """Say how rows are padded, and what masks the padding."""
        return (
            f"rows are padded to {self.width} tokens with token {self.token} and log-probs of 0 "
            f"({self.padded} of the first {self.rows} rows); `{self.mask}` masks the padding"
        )


def find_padding(
    ids: Sequence[NDArray[Any]], log_probs: Sequence[Sequence[NDArray[Any]]]
) -> tuple[Padding, NDArray[np.int64]] | None:
    """Recognise padding in rows of token ids and their log-probs, one list of rows a policy.

    Returns the padding, and the length of the tail that it has in every row; None where the rows
    are genuine, which rows of different lengths always are.
    """
    width = len(ids[0]) if len(ids) else 0
    if len(ids) < 2 or width < SHORTEST_TAIL or not log_probs:
        return None
    if any(len(row) != width for rows in (ids, *log_probs) for row in rows):
        return None
    tokens = np.stack(ids)
    empty = np.all([np.stack(rows) == 0 for rows in log_probs], axis=0)
    flags = empty & (tokens == tokens[:, -1:])
    tails = np.cumprod(flags[:, ::-1], axis=1).sum(1)
    ends = tokens[tails >= SHORTEST_TAIL, -1]
    if not len(ends):
        return None
    found, counts = np.unique(ends, return_counts=True)
    token = int(found[np.argmax(counts)])
    tails = np.where((tokens[:, -1] == token) & (tails >= SHORTEST_TAIL), tails, 0)
    padded = int((tails > 0).sum())
    enough = padded >= SHARE_OF_ROWS * len(ids) and tails.sum() >= SHARE_OF_TOKENS * tokens.size
    if padded < 2 or not enough or len(np.unique(tails)) < 2:
        return None
    return Padding(width, token, len(ids), padded), tails


def masks_padding(mask: Sequence[NDArray[Any]], tails: NDArray[np.int64]) -> bool:
    """Tell whether a mask leaves out the tails, and not all that is before them.

    The first token of a tail may be unmasked: the end of a sequence can be the token that fills up.
    """
    width = len(mask[0])
    if any(len(row) != width for row in mask):
        return False
    kept = np.stack(mask) != 0
    place = np.arange(width)
    behind = place >= (width - tails + 1)[:, None]
    before = place < (width - tails)[:, None]
    return not kept[behind & (tails > 0)[:, None]].any() and bool(kept[before].any())


def refusal(
    path: str, padding: Padding, tokens: str, log_probs: Sequence[str], masks: Sequence[str]
) -> RcdiagError:
    """Return the error of a padded table without a mask, or with several, and the ways out."""
    zeros = " and ".join(f"`{name}`" for name in log_probs)
    several = " and ".join(f"`{name}`" for name in masks)
    why = f"{several} may both say where" if len(masks) > 1 else "no mask says where"
    mask = masks[0] if masks else "YOUR_MASK"
    return RcdiagError(
        f"{path}: rows are padded, and {why}: of the first {padding.rows} rows, all of "
        f"{padding.width} tokens, {padding.padded} end in token {padding.token} of `{tokens}` "
        f"repeated, with {zeros} exactly 0 there",
        hint=f"{column_setting({'response_mask': mask})}, a column of the same width that is 0 at "
        "the padding; or cut every list to the response's length before it is written. If these "
        "tokens were sampled, a `response_mask` of ones says so",
    )


def cuts_of(
    matrices: Mapping[str, NDArray[Any]], where: Callable[[int], str]
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


def cuts_of_tails(
    matrices: Mapping[str, NDArray[Any]],
) -> tuple[str, dict[str, pa.ListArray]] | None:
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


def one_of(column: str, matrices: Mapping[str, NDArray[Any]]) -> str | None:
    """Return the matrix that has a column's name, or one that other programs give to it alone."""
    names = [column, *(known.name for known in names_for(column).values() if not known.whole)]
    return next((name for name in names if name in matrices), None)


def _cut(
    columns: Sequence[str],
    matrices: Mapping[str, NDArray[Any]],
    mask: NDArray[Any],
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
    side = "left" if behind else "either"  # prompts may be padded at either end
    misfits = blocks.misfits(tokens, "" if where is None else side)
    if len(misfits) and where is not None:
        raise RcdiagError(
            f"{where(int(misfits[0]))}: `{ATTENTION}` is not one block of ones at an end of "
            f"`{columns[0]}`",
            hint="rows that are packed, or padded in another way, are not what a trainer writes",
        )
    if len(misfits):
        return {}
    return {column: blocks.column(mask_as_bits(column, matrices[column])) for column in columns}


def mask_as_bits(column: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a mask that a trainer keeps as floats as whole numbers."""
    if "mask" in column and values.dtype.kind == "f" and np.isin(values, (0, 1)).all():
        return values.astype(np.uint8)
    return values
