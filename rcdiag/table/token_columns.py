"""Checks of columns with one value per token, wherever tokens enter.

Tokens enter as a reader's rows, as rows of a parquet file, and as arguments of `Recorder.add`. Each
has its own way to name a row in an error, which is the argument `refuse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.formats import plural
from rcdiag.table.arrow import lengths_of
from rcdiag.table.schema import EXPERTS, LISTS_OF_IDS, TOKEN_FLOATS, column_spec

# No vocabulary is larger; sums by token id are arrays of this length at most.
MOST_TOKEN_IDS = 1 << 20

# (column, row among the checked ones, what is wrong, hint) -> the error, which names the row
Refuse = Callable[[str, int, str, str], RcdiagError]


def in_file(where: Callable[[int], str]) -> Refuse:
    """Return the error function for rows of a file; `where(row)` names file and row."""
    return lambda name, row, what, hint: RcdiagError(
        f"{where(row)}: column `{name}`: {what}", hint=hint
    )


def has_value_by_token(name: str, kind: pa.DataType) -> bool:
    """Tell whether a column of this type has one value per response token."""
    if column_spec(name) in (TOKEN_FLOATS, EXPERTS, LISTS_OF_IDS) or name == "response_mask":
        return not pt.is_null(kind)
    return name == "policy_version" and pt.is_nested(kind)  # it may be per row or per token


def check_lengths(
    name: str,
    own: NDArray[np.int64],
    tokens: NDArray[np.int64],
    refuse: Refuse,
    *,
    prompts: pa.Array | pa.ChunkedArray | None = None,
    unexplained: str | None = None,
) -> None:
    """Raise an error if a row has more or fewer values than tokens, [rows]; -1 is a null row.

    The hint explains the difference by the rows' `prompts` if possible, else it is `unexplained`.
    """
    differ = (own != tokens) & (own >= 0)
    if not differ.any():
        return
    row = int(np.argmax(differ))
    more = int(tokens[row] - own[row])
    prompt = 0 if prompts is None else int(lengths_of(prompts)[row])
    hint = unexplained or "every column needs a value for each response token" + (
        ", `response_ids` may hold the prompt too" if more > 0 else ""
    )
    if more > 0 and prompt == more:
        held = plural(more, "token")
        hint = f"`response_ids` hold the prompt too ({held}): write only what follows it"
    elif more < 0 and prompt and prompt + more in (0, 1):  # engines have no value for the 1st token
        hint = f"it covers the prompt too ({-more} values): keep the last {tokens[row]} of this row"
    elif abs(more) == 1:
        hint = "one token apart: the end-of-sequence token was probably dropped on one side"
    raise refuse(name, row, f"{own[row]} values for {tokens[row]} tokens", hint)


def check_ids(name: str, ids: NDArray[Any], lengths: NDArray[np.int64], refuse: Refuse) -> None:
    """Raise an error at ids [tokens] that no vocabulary has; NaN stands for a null."""
    if len(ids) and not (ids.min() >= 0 and ids.max() < MOST_TOKEN_IDS):
        wrong = ~((ids >= 0) & (ids < MOST_TOKEN_IDS))
        hint = f"token ids are 0 to {MOST_TOKEN_IDS - 1:,}; padding does not belong in the table"
        refuse_first(name, ids, wrong, lengths, refuse, hint, "token id ")


def check_mask(name: str, mask: NDArray[Any], lengths: NDArray[np.int64], refuse: Refuse) -> None:
    """Raise an error at mask values [tokens] other than 0 and 1; NaN stands for a null."""
    if mask.dtype != np.bool_:
        hint = "a mask is 1 for tokens that the policy sampled and 0 for all others"
        refuse_first(name, mask, (mask != 0) & (mask != 1), lengths, refuse, hint)


def refuse_first(
    name: str,
    values: NDArray[Any],
    wrong: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    refuse: Refuse,
    hint: str,
    called: str = "",
) -> None:
    """Raise an error for the first `wrong` value [tokens]; `lengths` [rows] locate its row.

    `called` is the noun before the value in the message.
    """
    if wrong.any():
        at = int(np.argmax(wrong))
        value = "a null" if values[at] != values[at] else f"{called}{values[at]}"
        row = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise refuse(name, row, f"it holds {value}", hint)
