"""Small worked numbers: two short sequences, and what every definition makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from rcdiag.glossary.generations import BY_K, BY_RATIO, OLD, SLIME, grouped
from rcdiag.results import CorrectionResult
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import Config
from rcdiag.trainers.verl.k_rejection import OPTIONS
from rcdiag.usecases.corrected import CorrectionRows, correction_results, wanted_quantities

LOG_RATIOS = ((0.1, -0.1, 1.5), (-1.2, -0.5))
BEHAVIOR = (-1.0, -0.5, -2.0, -0.7, -1.5)
TOY = "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]"
# Two sequences, the first one with advantage 1 and the second with -1.
UPDATE = f"old log-probs [-1, -0.5, -2], [-0.7, -1.5], {TOY} of current to old, advantages 1 and -1"
PADDED_TOY = f"{TOY} and a row without a token"
BOUNDED = ", by token, bounds 0.5 and 2"

_TOKENS = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True}
_VETO = {"rollout_token_veto_threshold": 1e-4}


def bound_of(option: str) -> str:
    """The bound of an option in worked numbers."""
    return "0.5_2.0" if option.endswith("k1") else "0.1"


def _configs(trainer: str) -> Iterator[Config]:
    """Settings under which a trainer logs all that it can; token weights with the bound 2."""
    if trainer in OLD:
        yield {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_mode": "mask"}
    elif trainer in BY_RATIO:
        yield {**_TOKENS, **_VETO, "rollout_rs": "token", "rollout_rs_threshold": 2.0}
    elif trainer in BY_K:
        yield {**_TOKENS, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
        for option in OPTIONS:
            yield {"rollout_rs": option, "rollout_rs_threshold": bound_of(option)}
        if trainer != "verl-0.7.1":
            yield {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}
    elif trainer in SLIME:
        yield from ({"tis_mode": mode} for mode in ("truncate", "clip", "mask"))
    yield from TRAINERS[trainer].presets.values()


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


@cache
def corrected(trainer: str, *settings: tuple[str, Any]) -> CorrectionResult:
    """The toy under some settings of a trainer."""
    plan = plan_corrections(TRAINERS[trainer], {"it": dict(settings)})
    rows = CorrectionRows.of({None: toy_pair()}, plan, wanted_quantities(plan)).whole
    return correction_results(plan, rows)["it"]


def logged(keys: dict[str, str]) -> dict[str, str]:
    """Trainers -> value on the padded toy, of a key that each calls by its own name."""
    found: dict[str, str] = {}
    for trainer, key in keys.items():
        for config in _configs(trainer):
            metrics = corrected(trainer, *config.items()).metrics
            if key in metrics:
                found[trainer] = f"{metrics[key]:.4g}"
                break
    return grouped(found)
