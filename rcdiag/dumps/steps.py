"""Which training steps a table has: one small column."""

from __future__ import annotations

import numpy as np

from rcdiag.dumps.reader import Dump


def known_steps(dump: Dump) -> list[int]:
    """All steps in ascending order; none where the table has no column `step`."""
    if "step" not in dump.schema.names:
        return []
    found: set[int] = set()
    for batch in dump.batches(["step"]):
        values = batch.table.column("step").drop_null().to_numpy()
        found.update(np.unique(values).tolist())
    return sorted(found)
