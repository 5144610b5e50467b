"""Types that a replay exchanges with the model that it trains; does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.table.trajectories import Trajectories

Array = NDArray[np.float64]
Parts = Sequence[Trajectories]  # consecutive rows of a table


class Fresh(Struct, frozen=True, kw_only=True):
    """New responses of the model's current weights, with their rewards."""

    parts: Parts
    reward: Array  # [rows]
    group: NDArray[np.uint64]  # [rows] by prompt


# Samples new responses to the batch's prompts, given their total number (None: as many as were
# recorded) and a seed.
Sampler = Callable[[int | None, int], Fresh]
