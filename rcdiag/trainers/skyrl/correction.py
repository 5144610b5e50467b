"""SkyRL's correction: outlier mask, token mask, weights, sequence mask, in this order.

Each step uses the mask that earlier steps leave. Source: skyrl 0.4.0,
skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py, and ppo_utils.py for the losses
that divide by the rollout's probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Guard, Tokens, exp, log
from rcdiag.corrections.bounds import window_of
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.results import Finding
from rcdiag.trainers.settings_table import Config, Refused, Settings
from rcdiag.trainers.settings_text import rounded
from rcdiag.trainers.writing import Facts

# The sampler's server writes this for a log-prob that is missing, NaN or infinite:
# skyrl/backends/skyrl_train/inference_servers/generate_wire.py.
FLOOR = -9999.0
GUARD = Guard(epsilon=0.0, nan_log_prob=FLOOR)
# Losses that compute the weights themselves, from the current and the rollout policy.
ON_ROLLOUT = ("rollout_is", "dppo", "cispo")
# Losses on which a correction has no effect.
WITHOUT_CORRECTION = ("clip_cov", "kl_cov", "cross_entropy", "importance_sampling")


def _change(tokens: Tokens) -> Array:
    """Return target - behavior probability of each token."""
    return exp(tokens.target) - exp(tokens.behavior)


def _where(tokens: Tokens, sign: int, values: Array) -> Array:
    """Return values where the advantage has a sign; elsewhere -inf, below any upper bound."""
    return np.where(sign * tokens.advantage > 0, values, -np.inf)


def _kl_where(tokens: Tokens, sign: int) -> Array:
    """Return KL(behavior || target) of the event "this token or another", nats.

    It is given only for tokens whose probability moved in the direction of an advantage of this
    sign.
    """
    q, p = exp(tokens.behavior), exp(tokens.target)
    one, epsilon = q.dtype.type(1.0), q.dtype.type(1e-8)
    rest = log((one - q + epsilon) / (one - p + epsilon))
    kl = q * (tokens.behavior - tokens.target) + (one - q) * rest
    return _where(tokens, sign, np.where(sign * _change(tokens) > 0, kl, -np.inf))


STATISTICS.ship(
    (
        Statistic(
            name="fall_below_0",
            formula="behavior - target probability where the advantage is below 0",
            unit="probability",
            of=lambda tokens: _where(tokens, -1, -_change(tokens)),
            needs_advantages=True,
        ),
        Statistic(
            name="kl_of_rise",
            formula="KL(behavior || target) of this token or another, where the advantage is above "
            "0 and the probability rose",
            of=lambda tokens: _kl_where(tokens, 1),
            needs_advantages=True,
        ),
        Statistic(
            name="kl_of_fall",
            formula="KL(behavior || target) of this token or another, where the advantage is below "
            "0 and the probability fell",
            of=lambda tokens: _kl_where(tokens, -1),
            needs_advantages=True,
        ),
    )
)


def read(settings: Settings) -> Correction:
    """Return masks and weights in SkyRL's order; bounds are inclusive, except rollout_is's."""
    loss = settings["policy_loss_type"]
    outlier, by_token = outlier_mask(settings), token_mask(settings)
    over = (*outlier, *by_token)
    weighting = _weighting(settings, over)
    rejections = over
    if (metric := settings["sequence_mask_metric"]) is not None:
        statistic = {"geometric": "geometric", "product": "sequence"}[metric]
        prefix = {"geometric": "geo", "product": "product"}[metric]
        low, high = settings[f"{prefix}_mask_low"], settings[f"{prefix}_mask_high"]
        rejections = (*over, Rejection(statistic, high, low, over))
    correction = Correction(weighting=weighting, rejections=rejections, guard=GUARD)
    if loss in WITHOUT_CORRECTION:
        if loss.endswith("_cov") and (weighting or settings["sequence_mask_metric"]):
            raise Refused(
                f"policy_loss_type: {loss} takes no off_policy_correction",
                "take another policy loss",
            )
        return Correction(guard=GUARD)  # the correction has no effect on other losses
    if loss in ON_ROLLOUT and (loss != "cispo" or settings["cispo_anchor"] == "rollout"):
        return _of_rollout(settings, loss, correction)
    return correction


def outlier_mask(settings: Config) -> tuple[Rejection, ...]:
    """Return the rejections of sequences by their extreme tokens; each bound works alone."""
    low, high = (settings[f"outlier_token_is_threshold_{side}"] for side in ("low", "high"))
    above = () if high is None else (Rejection("seq_max_ratio", high),)
    return above if low is None else (*above, Rejection("seq_min_ratio", np.inf, low))


def token_mask(settings: Config) -> tuple[Rejection, ...]:
    """Return the rejection of single tokens; both bounds are needed."""
    low, high = (settings[f"token_mask_is_threshold_{side}"] for side in ("low", "high"))
    return () if low is None or high is None else (Rejection("token", high, low),)


def _weighting(settings: Settings, over: tuple[Rejection, ...]) -> Weighting | None:
    """Return the weights; `use_tis` means token weights and overrides the newer settings."""
    if settings["use_tis"]:
        return Weighting("token", settings["tis_imp_ratio_cap"])
    level = settings["tis_ratio_type"]
    if level is None:
        return None
    cap = settings[f"{level}_tis_ratio_clip_high"]
    return Weighting(level, cap, over=over if level == "sequence" else ())


def _of_rollout(settings: Settings, loss: str, correction: Correction) -> Correction:
    """Return the correction for a loss whose ratio is current policy / rollout."""
    if correction.weighting is not None:
        if loss == "cispo":
            raise Refused(
                "cispo_anchor: rollout corrects already and refuses tis_ratio_type",
                "set tis_ratio_type to null",
            )
        return correction
    zeroing: tuple[Rejection, ...] = ()
    if loss == "rollout_is":
        low, high = settings["eps_clip_low"], settings["eps_clip_high"]
        # An open interval: the bounds themselves are outside.
        inner = float(np.nextafter(1.0 + high, 0.0)), float(np.nextafter(1.0 - low, np.inf))
        weighting, loss = Weighting("token", *inner, outside="zero"), "icepop_rollout"
    elif loss == "cispo":
        low, high = settings["cispo_eps_clip_low"], settings["cispo_eps_clip_high"]
        weighting, loss = Weighting("token", 1.0 + high, 1.0 - low, outside="clip"), "cispo_rollout"
    else:
        by_kl = settings["dppo_type"] == "binary_kl"
        loss = "dppo_kl" if by_kl else "dppo_tv"
        rise, fall = ("kl_of_rise", "kl_of_fall") if by_kl else ("rise", "fall_below_0")
        # Tokens that moved too far in the direction of their advantage get weight 0.
        zeroing = (
            Rejection(f"token_{rise}", settings["delta_high"]),
            Rejection(f"token_{fall}", settings["delta_low"]),
        )
        weighting = Weighting("token", np.inf)
    return replace(
        correction, weighting=weighting, zeroing=zeroing, loss=loss, weights_in_loss=True
    )


def ignored(config: Config) -> list[str]:
    """Report token masks together with a policy loss on which corrections have no effect."""
    loss = config["policy_loss_type"]
    if loss in WITHOUT_CORRECTION and (outlier_mask(config) or token_mask(config)):
        return [f"the masks of tokens have no effect on {loss}"]
    return []


def file_findings(document: Mapping[str, Any], config: Config) -> list[Finding]:
    """Report masks that need log-probs although the sampler returns none."""
    sampling = document.get("generator", {})
    sampling = sampling.get("sampling_params", {}) if isinstance(sampling, Mapping) else {}
    if not isinstance(sampling, Mapping) or sampling.get("logprobs", 1) is not None:
        return []
    asks = config["tis_ratio_type"] is not None or config["sequence_mask_metric"] is not None
    if asks or config["use_tis"] or not (outlier_mask(config) or token_mask(config)):
        return []
    return [
        Finding(
            slug="masks-without-log-probs",
            severity="error",
            message="generator.sampling_params.logprobs is null, so that the masks of this config "
            "do nothing",
            fix="set generator.sampling_params.logprobs: 1",
        )
    ]


def facts(correction: Correction, facts: Facts) -> Facts:
    """Describe the masks by SkyRL's steps, and a loss that computes the weights itself."""
    own: Facts = {
        "statistics": [one.statistic for one in correction.rejections],
        "corrects": bool(correction.rejections) or correction.weighting is not None,
    }
    for test in correction.rejections:
        if test.statistic == "seq_max_ratio":
            own["outlier.high"] = test.upper
        elif test.statistic == "seq_min_ratio":
            own["outlier.low"] = test.lower
        elif test.of_ratio:
            window = window_of(test)
            step = "token" if test.statistic == "token" else "mask"
            own[f"{step}.lower"] = float(np.exp(window.lower))
            own[f"{step}.upper"] = float(np.exp(window.upper))
            if step == "mask":
                own["metric"] = "product" if test.statistic == "sequence" else "geometric"
    weighting = correction.weighting
    if weighting is None or not correction.weights_in_loss:
        return own
    if correction.loss in ("dppo_tv", "dppo_kl"):
        bounds = (one.upper for one in correction.zeroing)
        return own | dict(zip(("loss.rise", "loss.fall"), bounds, strict=False))
    return own | {
        "loss.above": rounded(weighting.upper - 1.0),
        "loss.below": rounded(1.0 - weighting.lower_or_reciprocal),
    }
