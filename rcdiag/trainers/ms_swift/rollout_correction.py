"""ms-swift's rollout correction: weights by mode, with an upper bound, and OPSM.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py and args_mixin.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.bounds import weights_of, windows_of
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.trainers.ms_swift.loss_in_config import loss_in
from rcdiag.trainers.ms_swift.losses import UPDATE
from rcdiag.trainers.ms_swift.metrics import LOGS, metrics, quantities
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_text import ABOVE_ALL, Inexpressible, Written, rounded
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Trainer,
    choice,
    optional_number,
    positive,
)

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_MODE, _BOUND = "rollout_importance_sampling_mode", "rollout_importance_sampling_threshold"
_DELTA = "off_policy_sequence_mask_delta"
_SETTINGS: dict[str, Any] = {
    _MODE: None,
    _BOUND: 2.0,
    "log_rollout_offpolicy_metrics": False,
    _DELTA: None,
}
# Each token's log-ratio is clamped before anything is averaged.
GUARD = Guard(bound=20.0, before_sums=True, epsilon=0.0)
OPSM = "seq_mean_negative_lag"


def read(config: Config) -> Correction:
    """Read the canonical correction; OPSM rejects, the modes do not."""
    mode, upper = choice(config, _MODE, (None, *MODES)), positive(config, _BOUND)
    delta = optional_number(config, _DELTA)
    rejections = () if delta is None else (Rejection(OPSM, delta, of_current=True),)
    logs = LOGS if mode is not None or config["log_rollout_offpolicy_metrics"] else ""
    zeroing: tuple[Rejection, ...] = ()
    weighting = None
    if mode == "token_truncate":
        weighting = Weighting("token", upper)
    elif mode == "token_mask":
        weighting = Weighting("token", upper, 0.0, "zero")
    elif mode == "sequence_truncate":
        weighting = Weighting("geometric", upper)
    elif mode == "sequence_mask":
        weighting, zeroing = Weighting("token", np.inf), (Rejection("geometric", upper),)
    return Correction(weighting, rejections, zeroing=zeroing, guard=GUARD, logging=logs)


def ignored(config: Config) -> list[str]:
    """List settings that ms-swift takes and does nothing with."""
    if config[_MODE] is None and config[_BOUND] != _SETTINGS[_BOUND]:
        return [f"{_BOUND} has no effect without {_MODE}"]
    return []


def write(correction: Correction) -> Written:
    """Write a mode with its bound, and OPSM."""
    if correction.mode != "decoupled" or correction.loss != "ppo_clip":
        raise Inexpressible("bypass mode or loss of its own beside its correction")
    if correction.veto is not None:
        raise Inexpressible("veto")
    if correction.batch_normalize:
        raise Inexpressible("batch normalisation of weights")
    if not correction.weights_applied:
        raise Inexpressible("weights that are logged only")
    rejects = windows_of(correction.rejections)
    if odd := [name for name in rejects if name != OPSM]:
        raise Inexpressible(f"rejection by {odd[0]}")
    opsm = Written({_DELTA: rejects[OPSM].upper} if OPSM in rejects else {})
    return _mode(correction) | opsm


def _mode(correction: Correction) -> Written:
    if correction.weighting is None:
        if correction.zeroing:
            raise Inexpressible("weights of 0 and 1")
        return Written({_MODE: None})
    weights, zeroed = weights_of(correction.weighting), windows_of(correction.zeroing)
    window, name = weights.window, f"{weights.level}_{'mask' if weights.zeroes else 'truncate'}"
    if zeroed:
        if weights.level != "token" or not window.bounds_nothing or set(zeroed) != {"geometric"}:
            raise Inexpressible(f"weights that {' and '.join(zeroed)} set to 0")
        window, name = zeroed["geometric"], "sequence_mask"
    if weights.floors or window.lower > -np.inf:
        raise Inexpressible("lower bound of weights")
    names = {"geometric_truncate": "sequence_truncate"}
    name = names.get(name, name)
    if name not in MODES or (weights.level == "sequence"):
        raise Inexpressible("weights that are products of ratios, or zeroed geometric means")
    upper = ABOVE_ALL if window.upper == np.inf else rounded(np.exp(window.upper))
    return Written({_MODE: name, _BOUND: upper})


def _claim(settings: Config, document: Document) -> Claim | None:
    """Claim settings by names that no other trainer has, or a file that says what it trains."""
    if settings:
        return Claim(1.0)
    return Claim(0.7) if document.find("rlhf_type") == "grpo" else None


GENERATIONS = (
    Trainer(
        name="ms-swift-4.6",
        family="ms-swift",
        package="rcdiag.trainers.ms_swift",
        newest=True,
        settings=_SETTINGS,
        presets={"off": {}, **{mode: {_MODE: mode} for mode in MODES}},
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            places={name: (name,) for name in _SETTINGS},
            claim=_claim,
            loss=loss_in,
            write=write,
            needs=("flags of `swift rlhf` have the same names",),
        ),
    ),
)
