"""The rewards of a table, before its tokens are read: two small columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.dumps.decode import floats, hashed
from rcdiag.dumps.reader import Dump


def read_rewards(dump: Dump) -> tuple[NDArray[np.uint64] | None, NDArray[np.float64]]:
    """Hash of the prompt group (None without groups) and reward of every row; NaN = unknown."""
    names = [name for name in ("group_id", "reward") if name in dump.schema.names]
    if "reward" not in names:
        return None, np.full(dump.num_rows, np.nan)
    groups, rewards = [], []
    for batch in dump.batches(names):
        rewards.append(floats(batch, "reward"))
        if "group_id" in names:
            groups.append(hashed(batch, "group_id"))
    return np.concatenate(groups) if groups else None, np.concatenate(rewards)
