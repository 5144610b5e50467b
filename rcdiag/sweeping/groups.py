"""Which prompt groups keep at least two sequences: two bits per group and setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]

# Groups whose bits are spread out at a time.
UNPACKED = 1024


@dataclass(frozen=True, slots=True)
class Groups:
    """Of every group, in the order of keys: whether at least one, and at least two, are kept."""

    keys: NDArray[np.uint64]  # [groups] ascending
    one: Bits  # [groups, settings / 8]
    two: Bits  # [groups, settings / 8]

    def kept(self, settings: int) -> NDArray[np.int64]:
        """Groups with two kept sequences, [settings]."""
        counts = np.zeros(settings, np.int64)
        for start in range(0, len(self.keys), UNPACKED):
            part = self.two[start : start + UNPACKED]
            counts += np.unpackbits(part, axis=1, count=settings).sum(axis=0, dtype=np.int64)
        return counts


def groups_of(keys: NDArray[np.uint64], counts: NDArray) -> Groups:
    """From kept sequences [groups, settings]."""
    return Groups(keys, np.packbits(counts >= 1, axis=1), np.packbits(counts >= 2, axis=1))


def union_of_groups(parts: Sequence[Groups]) -> Groups:
    """The groups of all shards: one here and one there are two."""
    if len(parts) == 1:
        return parts[0]
    keys = np.unique(np.concatenate([part.keys for part in parts]))
    one = np.zeros((len(keys), parts[0].one.shape[1]), np.uint8)
    two = np.zeros_like(one)
    for part in parts:
        at = np.searchsorted(keys, part.keys)
        two[at] |= part.two | (one[at] & part.one)
        one[at] |= part.one
    return Groups(keys, one, two)
