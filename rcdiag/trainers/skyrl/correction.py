"""SkyRL's settings become a correction: outlier mask, token mask, weights, sequence mask.

Each step sees the mask that those before it leave. Source: skyrl 0.4.0,
skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py; of the losses that divide by the
rollout's probability, ppo_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.exponentials import exp, log
from rcdiag.corrections.guard import Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.trainer import Config, Refused, choice, optional_number

# The sampler's server writes it in place of a log-prob that is missing or no number:
# skyrl/backends/skyrl_train/inference_servers/generate_wire.py.
FLOOR = -9999.0
GUARD = Guard(epsilon=0.0, nan_log_prob=FLOOR)
# Losses that make the weights themselves, of the current policy and the rollout.
ON_ROLLOUT = ("rollout_is", "dppo", "cispo")
LOSSES = ("regular", "dual_clip", "gspo", "sapo", "cispo", "rollout_is", "dppo")
# Losses that no setting of a correction reaches.
WITHOUT_CORRECTION = ("clip_cov", "kl_cov", "cross_entropy", "importance_sampling")
SETTINGS: Mapping[str, Any] = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_low": 0.99,
    "geo_mask_high": 1.01,
    "product_mask_low": 0.5,
    "product_mask_high": 2.0,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
    "use_tis": False,
    "tis_imp_ratio_cap": -1.0,
    "policy_loss_type": "regular",
    "eps_clip_low": 0.2,
    "eps_clip_high": 0.2,
    "cispo_anchor": "old",
    "cispo_eps_clip_low": 1.0,
    "cispo_eps_clip_high": 4.0,
    "dppo_type": "binary_tv",
    "delta_low": 0.2,
    "delta_high": 0.2,
}
# Where no default turns a mode on, its bounds are those that the comments in the code suggest.
PRESETS: Mapping[str, Config] = {
    "default": {},
    "token_tis": {"tis_ratio_type": "token"},
    "sequence_tis": {"tis_ratio_type": "sequence"},
    "geometric_mask": {"sequence_mask_metric": "geometric"},
    "product_mask": {"sequence_mask_metric": "product"},
    "outlier_mask": {
        "outlier_token_is_threshold_low": 1e-4,
        "outlier_token_is_threshold_high": 100.0,
    },
    "token_mask": {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0},
    "loss_rollout_is": {"policy_loss_type": "rollout_is"},
    "loss_cispo_rollout": {"policy_loss_type": "cispo", "cispo_anchor": "rollout"},
    "loss_dppo_tv": {"policy_loss_type": "dppo"},
    "loss_dppo_kl": {
        "policy_loss_type": "dppo",
        "dppo_type": "binary_kl",
        "delta_low": 0.05,
        "delta_high": 0.05,
    },
}


def _change(tokens: Tokens) -> Array:
    """Return target - behavior probability of each token."""
    return exp(tokens.target) - exp(tokens.behavior)


def _kl(tokens: Tokens) -> Array:
    """Return KL(behavior || target) of the choice "this token or another", nats."""
    q, p = exp(tokens.behavior), exp(tokens.target)
    one, epsilon = q.dtype.type(1.0), q.dtype.type(1e-8)
    rest = log((one - q + epsilon) / (one - p + epsilon))
    return q * (tokens.behavior - tokens.target) + (one - q) * rest


def _where(tokens: Tokens, sign: int, values: Array) -> Array:
    """Return values where the advantage has a sign; elsewhere no upper bound is passed."""
    return np.where(sign * tokens.advantage > 0, values, -np.inf)


def _kl_where(tokens: Tokens, sign: int) -> Array:
    moved = np.where(sign * _change(tokens) > 0, _kl(tokens), -np.inf)
    return _where(tokens, sign, moved)


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


def read(config: Config) -> Correction:
    """Read the canonical correction; all bounds are included but those of rollout_is."""
    config = without_old_names(config)
    loss = str(choice(config, "policy_loss_type", (*LOSSES, *WITHOUT_CORRECTION)))
    outlier, by_token = outlier_mask(config), token_mask(config)
    over = (*outlier, *by_token)
    correction = Correction(
        weighting=_weighting(config, over),
        rejections=(*over, *_sequence_mask(config, over)),
        guard=GUARD,
    )
    if loss in WITHOUT_CORRECTION:
        return _of_a_loss_without(config, loss, correction)
    if loss in ON_ROLLOUT and (loss != "cispo" or _anchor(config) == "rollout"):
        return _of_rollout(config, loss, correction)
    return correction


def without_old_names(config: Config) -> Config:
    """Replace `use_tis` by what it stands for, whatever the new settings say."""
    if not config["use_tis"]:
        return config
    cap = config["tis_imp_ratio_cap"]
    return {**config, "tis_ratio_type": "token", "token_tis_ratio_clip_high": cap}


def _anchor(config: Config) -> str:
    return str(choice(config, "cispo_anchor", ("old", "rollout")))


def _number(config: Config, name: str) -> float:
    value = optional_number(config, name)
    if value is None:
        raise Refused(f"{name}: wanted a number, got null", f"its default is {SETTINGS[name]}")
    return value


def outlier_mask(config: Config) -> tuple[Rejection, ...]:
    """Return the rejections of sequences by their extreme tokens; either bound is enough."""
    low = optional_number(config, "outlier_token_is_threshold_low")
    high = optional_number(config, "outlier_token_is_threshold_high")
    above = () if high is None else (Rejection("seq_max_ratio", high),)
    return above if low is None else (*above, Rejection("seq_min_ratio", np.inf, low))


def token_mask(config: Config) -> tuple[Rejection, ...]:
    """Return the rejection of single tokens; it needs both bounds."""
    low = optional_number(config, "token_mask_is_threshold_low")
    high = optional_number(config, "token_mask_is_threshold_high")
    return () if low is None or high is None else (Rejection("token", high, low),)


def _weighting(config: Config, over: tuple[Rejection, ...]) -> Weighting | None:
    level = choice(config, "tis_ratio_type", (None, "token", "sequence"))
    if level is None:
        return None
    cap = _number(config, f"{level}_tis_ratio_clip_high")
    return Weighting(level, cap, over=over if level == "sequence" else ())


def _sequence_mask(config: Config, over: tuple[Rejection, ...]) -> tuple[Rejection, ...]:
    metric = choice(config, "sequence_mask_metric", (None, "geometric", "product"))
    if metric is None:
        return ()
    name, prefix = {"geometric": ("geometric", "geo"), "product": ("sequence", "product")}[metric]
    low, high = _number(config, f"{prefix}_mask_low"), _number(config, f"{prefix}_mask_high")
    return (Rejection(name, high, low, over),)


def _of_a_loss_without(config: Config, loss: str, correction: Correction) -> Correction:
    """SkyRL stops where a correction meets clip_cov or kl_cov; other losses leave it out."""
    asked = config["tis_ratio_type"] is not None or config["sequence_mask_metric"] is not None
    if asked and loss.endswith("_cov"):
        raise Refused(
            f"policy_loss_type: {loss} takes no off_policy_correction", "take another policy loss"
        )
    return Correction(guard=correction.guard)


def _of_rollout(config: Config, loss: str, correction: Correction) -> Correction:
    """Return the correction of a loss whose own ratio is that of current policy to rollout."""
    if correction.weighting is not None:
        if loss == "cispo":
            raise Refused(
                "cispo_anchor: rollout corrects already and refuses tis_ratio_type",
                "set tis_ratio_type to null",
            )
        return correction
    zeroing: tuple[Rejection, ...] = ()
    if loss == "rollout_is":
        low, high = _number(config, "eps_clip_low"), _number(config, "eps_clip_high")
        # An open interval: the bounds themselves are outside.
        inner = float(np.nextafter(1.0 + high, 0.0)), float(np.nextafter(1.0 - low, np.inf))
        weighting, loss = Weighting("token", *inner, outside="zero"), "icepop_rollout"
    elif loss == "cispo":
        low, high = _number(config, "cispo_eps_clip_low"), _number(config, "cispo_eps_clip_high")
        weighting, loss = Weighting("token", 1.0 + high, 1.0 - low, outside="clip"), "cispo_rollout"
    else:
        kind = choice(config, "dppo_type", ("binary_tv", "binary_kl"))
        loss = {"binary_tv": "dppo_tv", "binary_kl": "dppo_kl"}[kind]
        weighting, zeroing = Weighting("token", np.inf), _trust_region(config, loss)
    return replace(
        correction, weighting=weighting, zeroing=zeroing, loss=loss, weights_in_loss=True
    )


def _trust_region(config: Config, loss: str) -> tuple[Rejection, ...]:
    """Return what gives tokens weight 0 that moved too far the way of their advantage."""
    names = {"dppo_tv": ("rise", "fall_below_0"), "dppo_kl": ("kl_of_rise", "kl_of_fall")}
    rise, fall = names[loss]
    return (
        Rejection(f"token_{rise}", _number(config, "delta_high")),
        Rejection(f"token_{fall}", _number(config, "delta_low")),
    )
