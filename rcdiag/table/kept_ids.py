"""`{policy}_kept_ids`: by response token the ids that its sampler could take, its kept set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged, Trajectories


def kept_ids_of(lists: Sequence[Sequence[int]]) -> Ragged:
    """Return kept ids, a list for each token, in flat form."""
    lengths = np.array([len(ids) for ids in lists], np.int64)
    ids = np.fromiter(chain.from_iterable(lists), np.int32, lengths.sum())
    return Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]))


def unpadded(ids: NDArray[np.integer]) -> Ragged:
    """Return kept ids, [tokens, most], whose rows are filled up with -1, in flat form."""
    kept = ids >= 0
    ends = np.cumsum(kept.sum(axis=1), dtype=np.int64)
    return Ragged(ids[kept].astype(np.int32), np.concatenate([[0], ends]))


def in_own_set(kept: Ragged, token_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell of each token whether it is among its kept ids, [tokens]; not where these are empty."""
    lengths = kept.lengths
    found: NDArray[np.bool_] = np.zeros(len(lengths), np.bool_)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    found[owner[kept.values == np.repeat(token_ids, lengths)]] = True
    return found


def by_row(kept: Ragged, rows: Trajectories) -> Ragged:
    """Return the same ids as one list for each row."""
    return Ragged(kept.values, kept.offsets[rows.response_ids.offsets])


def check_kept_ids(rows: Trajectories, name: str, where: Callable[[int], str]) -> None:
    """Refuse rows whose sampled tokens are not all in a kept set of theirs.

    A column in which some tokens have no set would mix log-probs over kept sets with those over the
    whole vocabulary: neither E[ratio] = 1 nor E[ratio] = kept mass holds for it. A token outside
    its own set cannot have been sampled from it.
    """
    kept, tokens = rows.token_lists[name], rows.response_ids
    empty = rows.mask & (kept.lengths == 0)
    outside = rows.mask & ~empty & ~in_own_set(kept, tokens.values)
    for wrong, what, hint in (
        (
            empty,
            "has no ids for {token}, which was sampled",
            "leave out rows without kept ids; where a token was not sampled, response_mask is 0",
        ),
        (
            outside,
            "lacks {token}, which was sampled",
            "do the kept ids belong to these rows and tokens? One position off, prompts among "
            "them, or another policy's look like this",
        ),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(np.searchsorted(tokens.offsets, at, side="right")) - 1
            token = f"token {at - tokens.offsets[row]} (id {tokens.values[at]})"
            several = (
                f" (the first of {wrong.sum():,} such tokens in the {len(rows):,} rows around)"
            )
            raise RcdiagError(
                f"{where(row)}: column `{name}` {what.format(token=token)}"
                f"{several if wrong.sum() > 1 else ''}",
                hint=hint,
            )
