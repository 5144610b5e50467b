"""64-bit hashes, for samples that depend neither on the order of rows nor on how they are batched.

They do not depend on the version of any library, so that a seed always samples the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rcdiag.table.trajectories import Ragged

if TYPE_CHECKING:
    import pyarrow as pa


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each word by a bijection (SplitMix64's finaliser, Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def hashed_lists(lists: Ragged) -> NDArray[np.uint64]:
    """Return a hash of each list of integers, [lists]."""
    counts = lists.lengths
    place = np.arange(len(lists.values)) - np.repeat(lists.offsets[:-1], counts)
    words = mixed(lists.values.astype(np.uint64) ^ (place.astype(np.uint64) << np.uint64(32)))
    sums = np.append(np.uint64(0), np.cumsum(words, dtype=np.uint64))
    return mixed(sums[lists.offsets[1:]] - sums[lists.offsets[:-1]] + counts.astype(np.uint64))


def hashed_texts(texts: pa.StringArray | pa.LargeStringArray) -> NDArray[np.uint64]:
    """Return a hash of each text, [texts]; its UTF-8 is mixed in 8 bytes at a time."""
    kind = np.int32 if str(texts.type) == "string" else np.int64
    ends = np.frombuffer(texts.buffers()[1], kind)[texts.offset :][: len(texts) + 1]
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
    # Append 8 zero bytes, so that the end of the last text can be read as a whole word.
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    content = np.concatenate([content, np.zeros(8, np.uint8)])
    hashes = mixed(lengths.astype(np.uint64))
    rows = np.flatnonzero(lengths)
    for first in range(0, int(lengths.max(initial=0)), 8):
        rows = rows[lengths[rows] > first]
        places = (starts[rows] + first)[:, None] + np.arange(8)
        inside = np.arange(first, first + 8) < lengths[rows][:, None]
        words = np.where(inside, content[places], 0).astype(np.uint8).view("<u8")[:, 0]
        hashes[rows] = mixed(hashes[rows] ^ words)
    return hashes
