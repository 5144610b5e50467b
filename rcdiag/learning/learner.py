"""What a replay hands to a model that it trains, and new rows that it gets: without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.table.trajectories import Trajectories

Array = NDArray[np.float64]
Parts = Sequence[Trajectories]  # rows of a table, in its order


class Fresh(Struct, frozen=True, kw_only=True):
    """New responses of the model in its present state, with their rewards."""

    parts: Parts
    reward: Array  # [rows]
    group: NDArray[np.uint64]  # [rows] by prompt


# Gives new responses to the batch's prompts, from how many in all (None: as many as were recorded)
# and a seed.
Sampler = Callable[[int | None, int], Fresh]
