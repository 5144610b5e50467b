"""`{policy}_kept_ids`: per response token, the ids that the sampler kept (its support)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged, Trajectories


def kept_ids_of(lists: Sequence[Sequence[int]]) -> Ragged:
    """Return kept ids, one list per token, in flat form."""
    lengths = np.array([len(ids) for ids in lists], np.int64)
    ids = np.fromiter(chain.from_iterable(lists), np.int32, lengths.sum())
    return Ragged.of(ids, lengths)


def unpadded(ids: NDArray[np.integer]) -> Ragged:
    """Return kept ids [tokens, width], padded with -1, in flat form."""
    kept = ids >= 0
    return Ragged.of(ids[kept].astype(np.int32), kept.sum(axis=1))


def in_own_set(kept: Ragged, token_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell for each token whether it is among its kept ids, [tokens]; False if there are none."""
    hits = np.flatnonzero(kept.values == np.repeat(token_ids, kept.lengths))
    found: NDArray[np.bool_] = np.zeros(len(kept), np.bool_)
    found[np.searchsorted(kept.offsets, hits, side="right") - 1] = True
    return found


def check_kept_ids(
    name: str,
    kept: Ragged,
    response_ids: Ragged,
    mask: NDArray[np.bool_],
    where: Callable[[int], str],
) -> None:
    """Raise an error if a sampled token is not in its kept set, since it cannot be sampled then."""
    outside = mask & (kept.lengths > 0) & ~in_own_set(kept, response_ids.values)
    _refuse_first(
        outside,
        response_ids,
        lambda row, token: f"{where(row)}: column `{name}` lacks {token}, which was sampled",
        "do the kept ids belong to these rows and tokens? A shift by one position, prompts among "
        "them, or ids of another policy look like this",
    )


def check_all_recorded(rows: Trajectories, name: str, where: Callable[[int], str]) -> None:
    """Raise an error if a sampled token has no kept ids.

    If some log-probs were over kept sets and others over the whole vocabulary, neither
    E[ratio] = 1 nor E[ratio] = kept mass would hold for the column.
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
    """Raise an error for the first `wrong` token [tokens], with the number of wrong tokens."""
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    row = response_ids.row_with(at)
    token = f"token {at - response_ids.offsets[row]} (id {response_ids.values[at]})"
    count = int(wrong.sum())
    several = f" (the first of {count:,} such tokens in {len(response_ids):,} rows from here)"
    raise RcdiagError(says(row, token) + (several if count > 1 else ""), hint=hint)
