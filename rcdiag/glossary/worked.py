"""Small worked numbers: two short sequences, and what every definition makes of them."""

from __future__ import annotations

from functools import cache

import numpy as np

from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.trajectories import Ragged, Trajectories

LOG_RATIOS = ((0.1, -0.1, 1.5), (-1.2, -0.5))
BEHAVIOR = (-1.0, -0.5, -2.0, -0.7, -1.5)
TOY = "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]"
# Two sequences, the first one with advantage 1 and the second with -1.
UPDATE = f"old log-probs [-1, -0.5, -2], [-0.7, -1.5], {TOY} of current to old, advantages 1 and -1"
PADDED_TOY = f"{TOY} and a row without a token"
BOUNDED = ", by token, bounds 0.5 and 2"


@cache
def toy_pair() -> PolicyPair:
    """The third row has no token that counts."""
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


def metric(name: str) -> float | None:
    """A metric of the toy; None where two sequences are too few for it."""
    return METRICS[name].value(Suite(SuiteState.of(toy_pair()), seed=0)).value
