"""The two short sequences of the examples in definitions."""

from __future__ import annotations

from functools import cache

import numpy as np

from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.table.trajectories import Ragged, Trajectories

LOG_RATIOS = ((0.1, -0.1, 1.5), (-1.2, -0.5))
BEHAVIOR = (-1.0, -0.5, -2.0, -0.7, -1.5)
TOY = "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]"


@cache
def toy_pair() -> PolicyPair:
    """Return the toy pair; its third row has no unmasked token."""
    ratios = np.concatenate([np.array(row) for row in LOG_RATIOS])
    behavior = np.array(BEHAVIOR)
    return pair_of(
        Trajectories(
            first_row=0,
            response_ids=Ragged(np.arange(6, dtype=np.int32), np.array([0, 3, 5, 6])),
            mask=np.array([True] * 5 + [False]),
            log_probs={
                "rollout": np.append(behavior, 0.0),
                "old": np.append(behavior + ratios, 0.0),
            },
            reward=np.array([1.0, 0.0, 0.0]),
        ),
        "rollout",
        "old",
    )
