"""The states of consecutive parts of a table merge into the state of all their rows.

A pass leaves two kinds of things: frames, with one row per sequence, and tallies, which are added
up. `merge` does both, whatever state holds them, so that parts may be read one after the other, by
several processes or by a cluster.
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

# States wait until there are this many, so that what concatenates is copied once for all of them;
# more of them would take more memory at a time.
TOGETHER = 8


def merge(states: Sequence[S]) -> S:
    """Merge states of one kind, in the order of their rows; at least one.

    Arrays and numbers are tallies: they are added. Lists are joined. Mappings merge key by key and
    structs field by field, where a `RowFrame` joins its arrays; None stands for nothing; labels
    (strings, tuples of them) are the same in all states. A struct that keeps a few of many says in
    a method `bounded()` which ones, of those that all parts kept. A class whose states merge in
    another way (sums by cluster, extremes, a sample) has a class method `merged(states)`.

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
    # Two infinities of different sign add up to NaN, as they do within one table.
    with np.errstate(over="ignore", invalid="ignore"):
        return reduce(add, present)


def merge_fields(states: Sequence[S], **own: Any) -> S:
    """Merge structs field by field, but for fields whose merged value is given by name."""
    first: Any = states[0]
    of_field = _joined if isinstance(first, RowFrame) else merge
    for name in first.__struct_fields__:
        if name not in own:
            own[name] = of_field([getattr(state, name) for state in states])
    made = type(first)(**own)
    return made.bounded() if hasattr(made, "bounded") else made  # type: ignore[no-any-return]


def _joined(parts: Sequence[Any]) -> Any:
    """Merge a field of frames: arrays are joined, those of mappings too."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return merge(parts)


def merge_by_key(states: Sequence[Mapping[Any, S]]) -> dict[Any, S]:
    """Merge the values that mappings have for each key; a key may be in some of them only."""
    keys = dict.fromkeys(key for state in states for key in state)
    return {key: merge([state[key] for state in states if key in state]) for key in keys}


def added_by_key(keys: Sequence[NDArray[K]], sums: Sequence[Array]) -> tuple[NDArray[K], Array]:
    """Add up rows of sums, [keys, ...] of each part, that have the same key, each ascending."""
    every = np.unique(np.concatenate(keys))
    total = np.zeros((len(every), *sums[0].shape[1:]))
    # Two infinities of different sign add up to NaN, as they do within one table.
    with np.errstate(over="ignore", invalid="ignore"):
        for own, part in zip(keys, sums, strict=True):
            # A part that has every key, as of a small vocabulary, needs no look-up.
            total[... if len(own) == len(every) else np.searchsorted(every, own)] += part
    return every, total


def merged(states: Iterable[S]) -> S | None:
    """Merge states as they come; None where there are none."""
    waiting: list[S] = []
    for state in states:
        take_in(waiting, state)
    return merge(waiting) if waiting else None


def take_in(waiting: list[S], state: S) -> None:
    """Append a state to those that wait to be merged, and merge them when they are many."""
    waiting.append(state)
    if len(waiting) == TOGETHER:
        waiting[:] = [merge(waiting)]
