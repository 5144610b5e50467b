"""Corrections are written as the settings of verl, by generation.

Sources: packages verl 0.6.1 to 0.9.1, verl/trainer/ppo/rollout_corr_helper.py and
verl/trainer/config/algorithm.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import Window, weights_of, windows_of
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.trainers.settings_text import (
    ABOVE_ALL,
    BELOW_ALL,
    Inexpressible,
    Value,
    Written,
    digits,
    rounded,
)

OF_K1 = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}


def by_k(correction: Correction, *, icepop: bool) -> Written:
    """Write settings of verl 0.7.1 and later: rejection by k1, k2, k3; IcePop from 0.8.0 on."""
    if correction.veto is not None:
        raise Inexpressible("veto")
    return (
        _weights(correction, icepop=icepop)
        | _by_k(windows_of(correction.rejections))
        | _loss(correction, "loss_type")
    )


def by_ratios(correction: Correction, *, loss: str) -> Written:
    """Write settings of verl 0.6.1 to 0.7.0: a ratio rejection and a veto; `loss` is a setting."""
    if correction.veto is not None and correction.veto_on_weights:
        raise Inexpressible("veto that zeroes weights and leaves the mask alone")
    veto: dict[str, Value] = {}
    if correction.veto is not None:
        veto = {"rollout_token_veto_threshold": float(correction.veto)}
    return (
        _weights(correction, icepop=False)
        | _by_ratio(windows_of(correction.rejections))
        | Written(veto)
        | _loss(correction, loss)
    )


def _weights(correction: Correction, *, icepop: bool) -> Written:
    weighting = correction.weighting
    if weighting is None:
        return Written({"rollout_is": None})
    if weighting.level == "geometric":
        raise Inexpressible("weights of geometric means")
    written = _bounded(weighting, icepop=icepop)
    if correction.batch_normalize:
        written |= Written({"rollout_is_batch_normalize": True})
    return Written({"rollout_is": weighting.level}) | written


def _bounded(weighting: Weighting, *, icepop: bool) -> Written:
    name, weights = "rollout_is_threshold", weights_of(weighting)
    lower, upper = np.exp(weights.window.lower), np.exp(weights.window.upper)
    if weights.zeroes:
        if not icepop:
            raise Inexpressible("weights that are zeroed outside of bounds (IcePop)")
        text = f"{digits(lower or BELOW_ALL)}_{digits(min(upper, ABOVE_ALL))}"
        comment = "IcePop: weights outside are 0, their tokens stay in the loss; keep the quotes"
        return Written({name: text}, {name: comment})
    if lower > 0.0:
        raise Inexpressible("weights that are clipped from below")
    if upper == np.inf:
        comment = "truncates nothing: verl clamps ratios at e^20, which is less"
        return Written({name: ABOVE_ALL}, {name: comment})
    return Written({name: rounded(upper)})


def _by_k(windows: dict[str, Window]) -> Written:
    if not windows:
        return Written()
    names = [OF_K1.get(name, name) for name in windows]
    kept = [
        f"{name} ratios from {np.exp(window.lower):.6g} to {np.exp(window.upper):.6g}"
        for name, window in windows.items()
        if name in OF_K1
    ]
    comment = "verl holds k1 bounds against -log_ratio: these keep " + " and ".join(kept)
    return Written(
        {
            "rollout_rs": ",".join(names),
            "rollout_rs_threshold": ",".join(_threshold(*item) for item in windows.items()),
        },
        {"rollout_rs_threshold": comment} if kept else {},
    )


def _threshold(name: str, window: Window) -> str:
    """Write a threshold: ratios from L to U are "1/U_1/L"; k2, k3 have an upper bound, nats."""
    if name not in OF_K1:
        if window.lower > -np.inf:
            raise Inexpressible(f"lower bound on {name}")
        return digits(window.upper)
    if window.upper == np.inf and name == "sequence":
        raise Inexpressible("rejection of sequences without an upper bound on the ratio")
    lower = np.exp(-window.upper) or BELOW_ALL
    return f"{digits(lower)}_{digits(np.exp(-window.lower))}"


def _by_ratio(windows: dict[str, Window]) -> Written:
    if not windows:
        return Written()
    if len(windows) > 1:
        raise Inexpressible("two rejections at once")
    ((name, window),) = windows.items()
    if name not in OF_K1:
        raise Inexpressible(f"rejection by {name}")
    upper = np.exp(window.upper)
    lower = np.exp(window.lower)
    return Written(
        {
            "rollout_rs": name,
            "rollout_rs_threshold": ABOVE_ALL if upper == np.inf else rounded(upper),
            "rollout_rs_threshold_lower": rounded(lower),
        }
    )


def _loss(correction: Correction, name: str) -> Written:
    """Write `loss_type`, in 0.6.1 `use_policy_gradient`; bypass with PPO only logs weights."""
    bypass, reinforce = correction.mode == "bypass", correction.loss == "reinforce"
    if correction.loss not in ("ppo_clip", "reinforce"):
        raise Inexpressible(f"loss `{correction.loss}` for its rollout correction")
    applied = not bypass or reinforce
    if correction.weighting is not None and correction.weights_applied != applied:
        raise Inexpressible(
            "weights that are logged only, outside of bypass mode"
            if applied
            else "weights in the loss of bypass mode with ppo_clip"
        )
    settings: dict[str, Value] = {"bypass_mode": True} if bypass else {}
    if reinforce:
        settings[name] = "reinforce" if name == "loss_type" else True
    comment = "verl 0.9 also wants actor_rollout_ref.actor.policy_loss.loss_mode: bypass_mode"
    return Written(settings, {"bypass_mode": comment} if bypass else {})
