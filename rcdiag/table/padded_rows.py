"""Rows that are padded to one length are recognised by their first rows, and need a mask.

A trainer's tensors written row by row have lists of one length. Behind the response they hold one
token, the same in every row, and log-probs that are exactly 0. Taken for data this padding adds
tokens without a mismatch, and halves every mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.schema import column_setting

# Rows that are looked at.
PADDED_ROWS = 128
# So long a tail of one token with log-probs of 0 counts: the last token alone is often certain.
SHORTEST_TAIL = 2
# A table is padded if so many of its rows have such a tail of one and the same token, and if the
# tails hold so many of the tokens: certain tokens at the end of a few rows are no padding.
SHARE_OF_ROWS, SHARE_OF_TOKENS = 0.25, 0.02


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
    ids: Sequence[NDArray], log_probs: Sequence[Sequence[NDArray]]
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


def masks_padding(mask: Sequence[NDArray], tails: NDArray[np.int64]) -> bool:
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
