"""ms-swift's rollout correction: weights by mode, with an upper bound, and OPSM.

Source: ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py (`_apply_rollout_importance_sampling`,
`_compute_off_policy_sequence_mask`) and args_mixin.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.ms_swift.metrics import LOGS
from rcdiag.trainers.settings_table import Settings
from rcdiag.trainers.writing import Facts

# Each token's log-ratio is clamped before averaging.
GUARD = Guard(bound=20.0, before_sums=True, epsilon=0.0)


def read(settings: Settings) -> Correction:
    """Return the weights, which reject no token, and OPSM, which rejects sequences."""
    mode = settings["rollout_importance_sampling_mode"]
    upper = settings["rollout_importance_sampling_threshold"]
    delta = settings["off_policy_sequence_mask_delta"]
    opsm = "seq_mean_negative_lag"
    rejections = () if delta is None else (Rejection(opsm, delta, of_current=True),)
    logs = LOGS if mode is not None or settings["log_rollout_offpolicy_metrics"] else ""
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


def facts(correction: Correction, facts: Facts) -> Facts:
    """Name the statistics that zero weights, for the message on settings that it lacks."""
    return {"zeroed": " and ".join(facts["zeroings"])}
