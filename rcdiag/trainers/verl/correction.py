"""verl's corrections by generation, and how rejection by k1, k2 and k3 is written.

Generations differ in rejection: up to 0.6.0 there are only weights, 0.6.1 to 0.7.0 reject by ratios
and a veto, 0.7.1 and later by k1, k2 and k3. Sources: verl #2953 (commit b8dc5377c),
verl/trainer/ppo/core_algos.py (`compute_policy_loss_vanilla`); packages verl 0.6.0 to 0.9.1,
verl/trainer/ppo/mismatch_helper.py (0.6.0) and rollout_corr_helper.py
(`compute_rollout_correction_weights`, `compute_rollout_rejection_mask`),
verl/trainer/config/algorithm.py; verl's documents of 2025-10-27 and 2025-12-03.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.bounds import windows_of
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_table import Refused, Settings, UnknownValue
from rcdiag.trainers.settings_text import BELOW_ALL, digits
from rcdiag.trainers.writing import Facts

OPTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_sum_k{k}" for k in (1, 2, 3)),
    *(f"seq_mean_k{k}" for k in (1, 2, 3)),
    *(f"seq_max_k{k}" for k in (2, 3)),
)
UNCLAMPED = Guard(bound=np.inf)
OF_K1 = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}


def by_cap(settings: Settings) -> Correction:
    """Return the correction of verl #2953: weights of tokens, without a clamp of log-ratios."""
    cap = settings["tis_imp_ratio_cap"]
    if not cap > 0:
        return Correction()
    return Correction(Weighting("token", cap), guard=UNCLAMPED)


def by_weights(settings: Settings, *, mask_is_rejection: bool) -> Correction:
    """Return the correction of 0.6.0; without a threshold everything is off, including metrics.

    Outside of the bounds, mode mask sets weights to 0 in 0.6.0, and rejects in 20251027.
    """
    level, mode = settings["rollout_is_level"], settings["rollout_is_mode"]
    veto, upper = settings["rollout_is_veto_threshold"], settings["rollout_is_threshold"]
    if upper is None:
        return Correction()
    lower = settings["rollout_is_threshold_lower"]
    lower = 1.0 / upper if lower is None else lower
    outside: Any = "truncate" if mode == "truncate" else "mask" if mask_is_rejection else "zero"
    return Correction(
        weighting=Weighting(level, upper, lower, outside, nan_stays=True),
        rejections=(Rejection(level, upper, lower),) if outside == "mask" else (),
        # verl takes log(threshold): 0 gives -inf and negatives NaN, so nothing is vetoed.
        veto=veto if veto is not None and veto > 0 else None,
        veto_on_weights=not mask_is_rejection,
        weights_applied=bool(settings["rollout_is"]),
    )


def by_ratios(settings: Settings) -> Correction:
    """Return the correction of 0.6.1 to 0.7.0; loss and mode are named as in 0.7.0."""
    level = settings["rollout_is"]
    weighting = None
    if level is not None and settings["rollout_is_threshold"] is not None:
        weighting = Weighting(level, settings["rollout_is_threshold"])
    veto = settings["rollout_token_veto_threshold"]
    loss = settings.get("loss_type", "ppo_clip")  # 0.6.1 calls it use_policy_gradient
    if settings.get("use_policy_gradient"):
        loss = "reinforce"
    return Correction(
        weighting=weighting,
        rejections=_ratio_rejection(settings),
        veto=veto,
        batch_normalize=bool(settings["rollout_is_batch_normalize"]),
        weights_applied=not settings["bypass_mode"] or loss == "reinforce",
        mode="bypass" if settings["bypass_mode"] else "decoupled",
        loss=loss,
    )


def _ratio_rejection(settings: Settings) -> tuple[Rejection, ...]:
    level = settings["rollout_rs"]
    if level is None:
        return ()
    upper = settings["rollout_rs_threshold"]
    if upper is None:
        raise Refused(
            "rollout_rs_threshold: not set; verl stops without it",
            "its documents say that it falls back to rollout_is_threshold; the code does not",
        )
    lower = settings["rollout_rs_threshold_lower"]
    return (Rejection(level, upper, 1.0 / upper if lower is None else lower),)


def by_k(settings: Settings, *, icepop: bool, ordered: bool) -> Correction:
    """Return the correction of 0.7.1 and later; IcePop exists from 0.8.0 on.

    `ordered` refuses a lower bound above the upper one, as 0.9 does.
    """
    level = settings["rollout_is"]
    weighting = None
    if level is not None and settings["rollout_is_threshold"] is not None:
        weighting = weights_at(level, settings["rollout_is_threshold"], icepop=icepop)
    loss = settings["loss_type"]
    return Correction(
        weighting=weighting,
        rejections=_rejections(settings, ordered=ordered),
        batch_normalize=bool(settings["rollout_is_batch_normalize"]),
        weights_applied=not settings["bypass_mode"] or loss == "reinforce",
        mode="bypass" if settings["bypass_mode"] else "decoupled",
        loss=loss,
    )


def weights_at(
    level: Any, threshold: float | str, *, icepop: bool, name: str = "rollout_is_threshold"
) -> Weighting:
    """Return weights: a number is a truncation; the text `lower_upper` is IcePop.

    `name` is the setting's name in errors; rLLM calls it differently.
    """
    if not isinstance(threshold, str):
        return Weighting(level, threshold)
    if not icepop:
        raise Refused(
            f"{name}: {threshold!r} is text, but this generation does not have IcePop",
            "a number, or verl-0.8.0 and later",
        )
    lower, upper = _lower_and_upper(
        threshold,
        f"{name}: {threshold!r} is not `upper` or `lower_upper`",
        '"0.5_5.0"',
    )
    if upper <= 0 or (lower is not None and not 0 < lower <= upper):
        raise Refused(f"{name}: {threshold!r} wants 0 < lower <= upper", '"0.5_5.0"')
    return Weighting(level, upper, lower, "truncate" if lower is None else "zero")


def _lower_and_upper(text: str, wrong: str, hint: str) -> tuple[float | None, float]:
    """Parse `upper` or `lower_upper`, such as "0.5_5.0"; verl stops on other text."""
    lower, bar, upper = text.partition("_")
    try:
        return (float(lower), float(upper)) if bar else (None, float(lower))
    except ValueError as error:
        raise Refused(wrong, hint) from error


def _rejections(settings: Settings, *, ordered: bool) -> tuple[Rejection, ...]:
    names = settings["rollout_rs"]
    if names is None:
        return ()
    options = list(dict.fromkeys(part.strip() for part in str(names).split(",") if part.strip()))
    for option in options:
        if option not in OPTIONS:
            raise UnknownValue(
                f"rollout_rs: {option!r} is not one of its values",
                f"one or more of {', '.join(OPTIONS)}",
                "rollout_rs",
            )
    threshold = settings["rollout_rs_threshold"]
    if threshold is None or not options:
        raise Refused("rollout_rs_threshold: not set; verl stops without it", '"0.5_2.0"')
    bounds = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(bounds) not in (1, len(options)):
        raise Refused(
            f"rollout_rs_threshold: {len(bounds)} thresholds for {len(options)} options",
            "one for all, or one for each option",
        )
    if len(bounds) == 1:
        bounds *= len(options)
    return tuple(
        _rejection(option, text, ordered=ordered)
        for option, text in zip(options, bounds, strict=True)
    )


def _rejection(option: str, text: str, *, ordered: bool) -> Rejection:
    """Return a rejection with its bounds in nats.

    Users write the bounds of k1 as ratios. verl compares -log_ratio with their logs, so that from
    0.7.1 on they bound 1 / ratio, contrary to verl's documents.
    """
    is_k1 = option.endswith("k1")
    if "_" in text and not is_k1:
        raise Refused(
            f"rollout_rs_threshold: {text!r} for {option}, which only has an upper bound", '"0.01"'
        )
    lower, upper = _lower_and_upper(
        text, f"rollout_rs_threshold: {text!r} for {option} is not a number", '"0.5_2.0"'
    )
    if upper <= 0:
        raise Refused(f"rollout_rs_threshold: {text!r} for {option} is not above 0", '"0.5_2.0"')
    if not is_k1:
        return Rejection(option, upper)
    lower = 1.0 / upper if lower is None else lower
    if lower <= 0:
        raise Refused(f"rollout_rs_threshold: {text!r} for {option} is not above 0", '"0.5_2.0"')
    if ordered and lower > upper:
        raise Refused(
            f"rollout_rs_threshold: {text!r} for {option} has its lower bound above its upper one",
            "a single number u means [1/u, u], so it must be 1 or more",
        )
    return Rejection(option, float(np.log(upper)), float(np.log(lower)))


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return how rejections by k1, k2 and k3 are written from 0.7.1 on, and which cannot be.

    Names and thresholds are in the same order. Thresholds of k1 are ratios, of k2 and k3 nats.
    """
    windows = windows_of(correction.rejections)
    ratios = {name: window for name, window in windows.items() if name in OF_K1}
    others = {name: window for name, window in windows.items() if name not in OF_K1}
    own: Facts = {
        "from_below": next((n for n, window in others.items() if window.lower > -np.inf), ""),
        "open_above": "sequence" in ratios and ratios["sequence"].upper == np.inf,
    }
    if windows:
        own["options"] = ",".join(OF_K1.get(name, name) for name in windows)
        thresholds = []
        for name, window in windows.items():
            if name in OF_K1:  # ratios from L to U are "1/U_1/L"
                lower = np.exp(-window.upper) or BELOW_ALL
                thresholds.append(f"{digits(lower)}_{digits(np.exp(-window.lower))}")
            else:
                thresholds.append(digits(window.upper))
        own["thresholds"] = ",".join(thresholds)
        own["kept_ratios"] = " and ".join(
            f"{name} ratios from {np.exp(window.lower):.6g} to {np.exp(window.upper):.6g}"
            for name, window in ratios.items()
        )
    return own
