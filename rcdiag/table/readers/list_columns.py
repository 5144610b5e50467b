"""List columns are made of flat values and the length of every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

# Token columns of a converted table have these element types.
IDS, FLOATS, BITS = np.int32, np.float32, np.uint8


def ragged(
    values: NDArray[Any], lengths: NDArray[np.integer], null: pa.Array | None = None
) -> pa.ListArray:
    """Return a list column, [rows], of flat values, [tokens], cut into rows of these lengths.

    Rows are null where `null` holds.
    """
    import pyarrow as pa

    if values.ndim != 1:
        raise ValueError(f"{values.ndim} dimensions where a token has one value")
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    if offsets[-1] != len(values):
        raise ValueError(f"{len(values)} values for lengths that add up to {offsets[-1]}")
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=null)


def experts(values: NDArray[Any], lengths: NDArray[np.integer]) -> pa.ListArray:
    """Return a column of the experts of each token, layer by layer, in rows of these lengths.

    `values` are [tokens, layers, experts]. A token whose experts are all 0, which no router of two
    or more chooses, was not recorded: it has an empty list.
    """
    import pyarrow as pa

    if values.ndim != 3 or values.dtype.kind not in "iu":
        raise ValueError(f"experts of tokens as {values.dtype} of {values.ndim} dimensions")
    flat = values.reshape(len(values), -1)
    recorded = flat.any(1) if values.shape[2] > 1 else np.ones(len(flat), bool)
    sizes = np.where(recorded, flat.shape[1], 0)
    tokens = ragged(flat[recorded].ravel().astype(np.uint16), sizes)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), tokens)
