"""Small worked numbers: two short sequences, and what every definition makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from rcdiag.glossary.generations import BY_K, BY_RATIO, OLD, SLIME, grouped
from rcdiag.results import CorrectionResult
from rcdiag.statistics.block import Block, block_of
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.trainer import Config
from rcdiag.trainers.verl.k_rejection import OPTIONS
from rcdiag.usecases.score import CorrectionState, results

LOG_RATIOS = ((0.1, -0.1, 1.5), (-1.2, -0.5))
BEHAVIOR = (-1.0, -0.5, -2.0, -0.7, -1.5)
TOY = "log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5]"
PADDED_TOY = f"{TOY} and a row without a token"
BOUNDED = ", by token, bounds 0.5 and 2"

CORRECTION: Config = {
    "rollout_is": "sequence",
    "rollout_is_threshold": 2.0,
    "rollout_rs": "token_k1",
    "rollout_rs_threshold": "0.6_1.6",
}
CORRECTED = f"sequence weights truncated at 2, token_k1 0.6_1.6 (verl-0.9), {TOY}"

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
def toy_block() -> Block:
    """The third row has no token that counts."""
    ratios = np.concatenate([np.array(row) for row in LOG_RATIOS])
    behavior = np.array(BEHAVIOR)
    return block_of(
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


@cache
def corrected(trainer: str, *settings: tuple[str, Any]) -> CorrectionResult:
    """The toy under some settings of a trainer."""
    plan = plan_corrections(TRAINERS[trainer], {"it": dict(settings)})
    state = CorrectionState(plan)
    state.add({None: toy_block()})
    return results(plan, state.by_step()[None])["it"]


def honest(name: str) -> Any:
    """A number beside the trainer's own, under `CORRECTION`."""
    found = corrected("verl-0.9", *CORRECTION.items())
    return found.honest[name] if name in found.honest else getattr(found, name)


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
