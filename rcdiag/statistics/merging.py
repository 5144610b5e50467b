"""Merge the states of consecutive parts of a table into the state of all their rows.

A pass produces two kinds of state: frames, with one row per sequence, which are concatenated, and
tallies, which are added. `merge` handles both in any state, so that parts may be read in sequence,
by several processes or on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array
from rcdiag.table.token_batch import RowFrame

S = TypeVar("S")
K = TypeVar("K", bound=np.generic)

# States are merged this many at a time, so that arrays are copied less often; a larger number would
# take more memory.
TOGETHER = 8


def merge(states: Sequence[S]) -> S:
    """Merge states of one kind, in the order of their rows; at least one.

    Arrays and numbers are tallies and are added. Lists are concatenated. Mappings are merged by
    key, structs by field; a `RowFrame` concatenates its arrays. None is ignored. Labels (strings,
    tuples of them) must be equal. If a struct keeps a limited number of items, its method
    `bounded()` selects them from those that all parts kept. A class that merges differently (sums
    by cluster, extremes, a sample) has a class method `merged(states)`.

    >>> merge([{"tokens": 2}, {"tokens": 3, "rows": 1}])
    {'tokens': 5, 'rows': 1}
    """
    present = [state for state in states if state is not None]
    if len(present) < 2:
        return present[0] if present else states[0]
    first: Any = present[0]
    if hasattr(first, "merged"):
        return type(first).merged(present)  # type: ignore[no-any-return]
    if isinstance(first, Mapping):
        return merge_by_key(present)  # type: ignore[return-value, arg-type]
    if isinstance(first, str | tuple):
        assert all(state == first for state in present), "labels are the same in all parts"
        return present[0]
    if isinstance(first, Struct):
        return merge_fields(present)
    # inf + (-inf) gives NaN, as within one table.
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(add, present)


def merge_fields(states: Sequence[S], **own: Any) -> S:
    """Merge structs by field, except for fields whose merged value is given by name."""
    first: Any = states[0]
    of_field = _joined if isinstance(first, RowFrame) else merge
    for name in first.__struct_fields__:
        if name not in own:
            own[name] = of_field([getattr(state, name) for state in states])
    made = type(first)(**own)
    return made.bounded() if hasattr(made, "bounded") else made  # type: ignore[no-any-return]


def _joined(parts: Sequence[Any]) -> Any:
    """Merge a field of frames: concatenate arrays, also those in mappings."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return merge(parts)


def merge_by_key(states: Sequence[Mapping[Any, S]]) -> dict[Any, S]:
    """Merge mappings by key; a key may be missing from some of them."""
    keys = dict.fromkeys(key for state in states for key in state)
    return {key: merge([state[key] for state in states if key in state]) for key in keys}


def added_by_key(keys: Sequence[NDArray[K]], sums: Sequence[Array]) -> tuple[NDArray[K], Array]:
    """Sum rows [keys, ...] of several parts by key; each part's keys are ascending."""
    every = np.unique(np.concatenate(keys))
    total = np.zeros((len(every), *sums[0].shape[1:]))
    # inf + (-inf) gives NaN, as within one table.
    with np.errstate(over="ignore", invalid="ignore"):
        for own, part in zip(keys, sums, strict=True):
            # If a part has every key, as with a small vocabulary, no look-up is needed.
            total[... if len(own) == len(every) else np.searchsorted(every, own)] += part
    return every, total


def merged(states: Iterable[S]) -> S | None:
    """Merge states as they arrive; None if there are none."""
    waiting: list[S] = []
    for state in states:
        take_in(waiting, state)
    return merge(waiting) if waiting else None


def take_in(waiting: list[S], state: S) -> None:
    """Append a state to the waiting ones; merge them if there are TOGETHER of them."""
    waiting.append(state)
    if len(waiting) == TOGETHER:
        waiting[:] = [merge(waiting)]
