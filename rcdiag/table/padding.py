"""Detect the padding of prompts and responses, and cut padded matrices.

A mask or lengths mark the tokens of a padded matrix [rows, width]; a padding id never does, because
it is often a legal token too. verl's attention_mask covers prompts, padded on the left, and
responses, padded on the right; TRL has one mask for each.

`find_padding` detects padding without a mask: all lists have the same length and end in repetitions
of one token with log-probs of exactly 0. If such padding were taken for data, it would add tokens
with a log_ratio of 0 and make every mean too small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import ragged
from rcdiag.table.column_names import names_for
from rcdiag.table.schema import column_setting

if TYPE_CHECKING:
    import pyarrow as pa

ATTENTION, COMPLETION, OF_PROMPTS = "attention_mask", "completion_mask", "prompt_mask"
# Note on a table that was cut, with the name of the mask.
CUT = "rows are cut to where `{mask}` is 1: padding of prompts and responses is left out"
# Masks that only mark padding: 1 at every token of a response, including those of tools.
OF_RESPONSES = (COMPLETION, ATTENTION)
# Number of rows that are examined.
PADDED_ROWS = 128
# Shortest tail that counts as padding: a single last token often has a log-prob of 0.
SHORTEST_TAIL = 2
# A table is padded if at least this share of its rows end in such a tail of the same token, and the
# tails hold at least this share of all tokens. Otherwise the tails are just certain tokens.
SHARE_OF_ROWS, SHARE_OF_TOKENS = 0.25, 0.02


class Cut(Struct, frozen=True, eq=False):
    """The position of each row's tokens: one block of columns of a padded matrix."""

    starts: NDArray[np.int64]  # first column of each row's tokens, [rows]
    lengths: NDArray[np.int64]  # number of tokens of each row, [rows]
    width: int | None = None  # number of columns of the matrices, if known

    @classmethod
    def from_mask(cls, mask: NDArray[np.bool_]) -> Cut:
        """Return blocks that start at each row's first 1 and are as long as its number of ones.

        `misfits` returns the rows whose ones do not form this block.
        """
        starts = mask.argmax(1).astype(np.int64) if mask.shape[1] else np.zeros(len(mask), np.int64)
        return cls(starts, mask.sum(1, dtype=np.int64), mask.shape[1])

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer], width: int) -> Cut:
        """Return the blocks of rows whose tokens start in column 0."""
        return cls(np.zeros(len(lengths), np.int64), lengths.astype(np.int64), width)

    def __add__(self, columns: int) -> Cut:
        """Return the same blocks for a matrix with this many more columns on the left."""
        return Cut(self.starts + columns, self.lengths)

    def inside(self, width: int) -> NDArray[np.bool_]:
        """Return True at each token and False at padding, [rows, width]."""
        place = np.arange(width)
        ends = self.starts + self.lengths
        return (place >= self.starts[:, None]) & (place < ends[:, None])

    def misfits(self, mask: NDArray[np.bool_], side: str = "") -> NDArray[np.int64]:
        """Return the rows, ascending, whose ones in a mask do not form one block.

        With `side` ("left", "right" or "either"), also rows whose block does not touch that side.
        """
        width = mask.shape[1]
        wrong = (self.inside(width) != mask).any(1)
        if side:
            before, behind = self.starts, width - self.starts - self.lengths
            gaps = {"left": before, "right": behind, "either": np.minimum(before, behind)}
            wrong |= (gaps[side] > 0) & (self.lengths > 0)
        return np.flatnonzero(wrong)

    def values(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows, concatenated without padding, [tokens, ...]."""
        return matrix[self.inside(matrix.shape[1])]

    def column(self, matrix: NDArray[Any]) -> pa.ListArray:
        """Return each row's values without padding as a list column."""
        return ragged(self.values(matrix), self.lengths)


class Padding(Struct, frozen=True):
    """How the rows of a table are padded to one length, and the column that masks the padding."""

    width: int  # tokens of every row, padding included
    token: int  # the padding id
    rows: int  # number of rows examined
    padded: int  # number of these that are padded
    mask: str = ""  # the file's column that is 0 at padding

    def sentence(self) -> str:
        """Say how rows are padded, and which column masks the padding."""
        return (
            f"rows are padded to {self.width} tokens with token {self.token} and log-probs of 0 "
            f"({self.padded} of the first {self.rows} rows); `{self.mask}` masks the padding"
        )


def find_padding(
    ids: Sequence[NDArray[Any]], log_probs: Sequence[Sequence[NDArray[Any]]]
) -> tuple[Padding, NDArray[np.int64]] | None:
    """Detect padding from token ids and log-probs (for each policy one list of rows).

    Returns the padding and the length of each row's padded tail, or None if the rows are not
    padded. Rows of different lengths are never padded.
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
    """Tell whether a mask is 0 at the tails but not at everything before them.

    The first token of a tail may be unmasked: it can be a genuine end-of-sequence token that is
    also the padding id.
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
    """Return the error for a padded table with no mask or several, with the ways to fix it."""
    zeros = " and ".join(f"`{name}`" for name in log_probs)
    several = " and ".join(f"`{name}`" for name in masks)
    why = f"{several} may both be the mask" if len(masks) > 1 else "there is no mask"
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
    """Cut padded matrices [rows, width] by the mask that marks their tokens.

    Returns the cut columns, and None for a mask that is no longer needed. `where(row)` names a row
    in errors.
    """
    tokens = one_of("response_ids", matrices)
    if tokens is None:
        return {}
    width = matrices[tokens].shape[1]
    prompt = one_of("prompt_ids", matrices)
    before = 0 if prompt is None else matrices[prompt].shape[1]
    attention = matrices.get(ATTENTION, np.empty((0, 0)))
    # An attention mask over the response alone may have another meaning, such as sampled tokens.
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


def one_of(column: str, matrices: Mapping[str, NDArray[Any]]) -> str | None:
    """Return which matrix is read as a canonical column, by its name or a known other name."""
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
    """Cut columns to the positions where a mask is 1.

    If the ones are not one block in each row, nothing is cut. If `where` is given, such a row is an
    error, and so is a row with padding at both ends or, if `behind`, with padding on the left.
    """
    tokens = mask != 0
    blocks = Cut.from_mask(tokens)
    side = "left" if behind else "either"  # prompts may be padded at either end
    misfits = blocks.misfits(tokens, "" if where is None else side)
    if len(misfits) and where is not None:
        raise RcdiagError(
            f"{where(int(misfits[0]))}: `{ATTENTION}` is not one block of ones at an end of "
            f"`{columns[0]}`",
            hint="packed rows, or rows padded in another way, are not what a trainer writes",
        )
    if len(misfits):
        return {}
    return {column: blocks.column(mask_as_bits(column, matrices[column])) for column in columns}


def mask_as_bits(column: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a float mask of 0 and 1, as some trainers store it, as uint8."""
    if "mask" in column and values.dtype.kind == "f" and np.isin(values, (0, 1)).all():
        return values.astype(np.uint8)
    return values
