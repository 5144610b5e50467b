"""The batch of the examples, and the metrics that trainers log on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from rcdiag.losses.batch import LossBatch, loss_batch
from rcdiag.losses.evaluate import LossResult
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import plan_corrections
from rcdiag.trainers.verl.correction import OPTIONS
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from tests.losses.rules import default_settings, evaluate
from tests.two_rows import BEHAVIOR as ROLLOUT
from tests.two_rows import LOG_RATIOS as BY_ROW
from tests.two_rows import toy_pair

LENGTHS = [3, 2]
LOG_RATIOS = np.concatenate([np.array(row) for row in BY_ROW])
BEHAVIOR = np.array(ROLLOUT)
ADVANTAGES = np.array([1.0, 1.0, 1.0, -1.0, -1.0])

Config = dict[str, Any]


# Settings under which trainers log keys that none of their presets logs.
MIS = "mis.compute_mis_weights_with_cp"
MORE_SETTINGS: dict[str, tuple[Config, ...]] = {
    "miles": tuple(
        {"use_tis": True, "custom_tis_function_path": MIS, "tis_mode": mode}
        for mode in ("truncate", "clip", "mask")
    ),
}


def _settings(trainer: str) -> Iterator[Config]:
    """Return settings that together log all keys of a trainer, those of examples first."""
    has = TRAINERS[trainer].settings
    if TRAINERS[trainer].family not in ("verl", "slime") or trainer == "verl-20250826":
        yield from MORE_SETTINGS.get(trainer, ())
        presets = TRAINERS[trainer].presets
        yield from (presets[name] for name in sorted(presets, key=lambda it: "token_" not in it))
        return
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
    """Compute all keys of a trainer on the toy, each under the first settings that log it."""
    configs = {str(number): config for number, config in enumerate(_settings(trainer))}
    plan = plan_corrections(TRAINERS[trainer], configs)
    rows = CorrectionRows.of({None: toy_pair()}, plan, asked_by(plan)).whole
    outcome: dict[str, float] = {}
    for name, result in reversed(correction_results(plan, rows).items()):
        assert name in configs
        outcome |= result.metrics
    return outcome


def update(trainer: str, kept: list[bool] | None = None) -> LossBatch:
    """Make the batch of an update: log-ratios of current to old; rollout = old - 0.1."""
    rollout = BEHAVIOR - 0.1 if trainer in ("slime", "miles") else None
    current = BEHAVIOR + LOG_RATIOS
    # Both log ois if there are weights.
    weights = np.ones(len(current)) if trainer in ("slime", "miles") else None
    return loss_batch(
        *(current, BEHAVIOR, ADVANTAGES, LENGTHS),
        rollout=rollout,
        kept=kept,
        weights=weights,
        groups=[0, 0],  # real compares answers to one prompt
        rewards=[1.0, 0.0],  # topr treats sequences by their reward
    )


# Settings that a loss requires.
NEEDED: dict[str, Config] = {"luspo": {"importance_sampling_level": "sequence"}}


def replayed(trainer: str, loss: str, **own: Any) -> LossResult:
    """Compute a policy loss on the toy with its own settings."""
    settings = default_settings(trainer).changed(dro_beta=0.1, **NEEDED.get(loss, {}), **own)
    return evaluate(update(trainer), loss, settings, trainer)


def by_losses(trainer: str) -> dict[str, set[str]]:
    """Return policy loss -> all keys that it can log."""
    own: dict[str, dict[str, Any]] = {
        "slime": {"opsm_delta": 1e-4},
        "miles": {"opsm_delta": 1e-4},
    }
    return {
        loss: set(replayed(trainer, loss, **own.get(trainer, {})).metrics)
        for loss in TRAINERS[trainer].update.losses
    }
