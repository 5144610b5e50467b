"""The batch on which worked numbers of keys are computed, and what trainers log on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from rcdiag.corrections.plan import plan_corrections
from rcdiag.corrections.state import CorrectionState, results
from rcdiag.corrections.trainers import TRAINERS
from rcdiag.corrections.trainers.verl_k import OPTIONS
from rcdiag.losses.evaluate import LossResult, evaluate
from rcdiag.losses.generations import default_settings
from rcdiag.statistics.block import Block, block_of
from rcdiag.trajectories import Ragged, Trajectories

from rcdiag.losses.batch import loss_batch
from rcdiag.losses.settings import SlimeSettings

LENGTHS = [3, 2]
LOG_RATIOS = np.array([0.1, -0.1, 1.5, -1.2, -0.5])
BEHAVIOR = np.array([-1.0, -0.5, -2.0, -0.7, -1.5])
ADVANTAGES = np.array([1.0, 1.0, 1.0, -1.0, -1.0])
REFUSED = "clip_cov"  # the loss that draws lots, which rcdiag does not compute

Config = dict[str, Any]


@cache
def block() -> Block:
    """Both sequences, and a third one without a token that counts."""
    return block_of(
        Trajectories(
            first_row=0,
            response_ids=Ragged(np.arange(6, dtype=np.int32), np.array([0, 3, 5, 6])),
            mask=np.array([True] * 5 + [False]),
            log_probs={
                "rollout": np.append(BEHAVIOR, 0.0),
                "old": np.append(BEHAVIOR + LOG_RATIOS, 0.0),
            },
        ),
        "rollout",
        "old",
    )


def _settings(trainer: str) -> Iterator[Config]:
    """Settings under which a trainer logs all that it can, those of worked numbers first."""
    has = TRAINERS[trainer].settings
    tokens = {"rollout_is": "token", "rollout_is_threshold": 2.0}
    if "tis_mode" in has:
        yield from ({"tis_mode": mode} for mode in ("truncate", "clip", "mask"))
    elif "rollout_is_mode" in has:
        yield {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_mode": "mask"}
    else:
        tokens["rollout_is_batch_normalize"] = True
        if "rollout_token_veto_threshold" in has:
            veto = {"rollout_token_veto_threshold": 1e-4}
            yield {**tokens, **veto, "rollout_rs": "token", "rollout_rs_threshold": 2.0}
        else:
            yield {**tokens, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
            for option in OPTIONS:
                bounds = "0.5_2.0" if option.endswith("k1") else "0.1"
                yield {"rollout_rs": option, "rollout_rs_threshold": bounds}
    if "decoupled_token_icepop" in TRAINERS[trainer].presets:
        yield {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}
    yield from TRAINERS[trainer].presets.values()


@cache
def logged(trainer: str) -> dict[str, float]:
    """All that a trainer logs on the toy, each key under the first settings that log it."""
    configs = {str(number): config for number, config in enumerate(_settings(trainer))}
    plan = plan_corrections(TRAINERS[trainer], configs)
    state = CorrectionState(plan)
    state.add({None: block()})
    found: dict[str, float] = {}
    for name in reversed(configs):
        found |= results(plan, state.by_step()[None])[name].metrics
    return found


def replayed(
    trainer: str, loss: str, kept: list[bool] | None = None, slime: SlimeSettings | None = None
) -> LossResult:
    """A policy loss on the toy: log-ratios are of current to old, rollout is old - 0.1."""
    settings = replace(default_settings(trainer), dro_beta=0.1)
    if slime is not None:
        settings = replace(settings, slime=slime)
    rollout = BEHAVIOR - 0.1 if trainer == "slime" else None
    current = BEHAVIOR + LOG_RATIOS
    batch = loss_batch(current, BEHAVIOR, ADVANTAGES, LENGTHS, rollout=rollout, kept=kept)
    return evaluate(batch, loss, settings, trainer)
