"""The number of values in each row of a list column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def lengths_of(column: pa.Array | pa.ChunkedArray, *, of_null: int = 0) -> NDArray[np.int64]:
    """Return the number of values of each row, [rows]; `of_null` where the row is null."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), of_null)
    return lengths.to_numpy().astype(np.int64)
