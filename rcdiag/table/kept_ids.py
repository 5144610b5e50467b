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
    hits = np.flatnonzero(kept.values == np.repeat(token_ids, kept.lengths))
    found: NDArray[np.bool_] = np.zeros(len(kept), np.bool_)
    found[np.searchsorted(kept.offsets, hits, side="right") - 1] = True
    return found


def by_row(kept: Ragged, rows: Trajectories) -> Ragged:
    """Return the same ids as one list for each row."""
    return Ragged(kept.values, kept.offsets[rows.response_ids.offsets])


def check_kept_ids(
    name: str,
    kept: Ragged,
    response_ids: Ragged,
    mask: NDArray[np.bool_],
    where: Callable[[int], str],
) -> None:
    """Refuse a sampled token that is not in its own kept set, from which it cannot have come."""
    outside = mask & (kept.lengths > 0) & ~in_own_set(kept, response_ids.values)
    _refuse_first(
        outside,
        response_ids,
        lambda row, token: f"{where(row)}: column `{name}` lacks {token}, which was sampled",
        "do the kept ids belong to these rows and tokens? One position off, prompts among them, or "
        "those of another policy look like this",
    )


def check_all_recorded(rows: Trajectories, name: str, where: Callable[[int], str]) -> None:
    """Refuse rows in which a sampled token has no kept ids.

    Log-probs over kept sets at some tokens and over the whole vocabulary at others would be a
    column for which neither E[ratio] = 1 nor E[ratio] = kept mass holds.
    """
    _refuse_first(
        rows.mask & (rows.token_lists[name].lengths == 0),
        rows.response_ids,
        lambda row, token: (
            f"{where(row)}: column `{name}` has no ids for {token}, which was sampled"
        ),
        "leave out rows without kept ids; where a token was not sampled, response_mask is 0",
    )


def _refuse_first(
    wrong: NDArray[np.bool_], response_ids: Ragged, says: Callable[[int, str], str], hint: str
) -> None:
    """Refuse the first token that is `wrong`, [tokens], and say how many are."""
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    row = int(np.searchsorted(response_ids.offsets, at, side="right")) - 1
    token = f"token {at - response_ids.offsets[row]} (id {response_ids.values[at]})"
    count = int(wrong.sum())
    several = f" (the first of {count:,} such tokens in {len(response_ids):,} rows from here)"
    raise RcdiagError(says(row, token) + (several if count > 1 else ""), hint=hint)
