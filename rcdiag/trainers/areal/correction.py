"""AReaL's settings become a correction: M2PO, then one test of tokens or sequences.

Sources: areal 1.0.4, areal/api/cli_args.py (`RejectionSamplingConfig`, `PPOActorConfig`),
areal/utils/functional/functional.py (`apply_rejection_sampling`) and areal/trainer/ppo/actor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.exponentials import exp
from rcdiag.corrections.guard import Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.trainer import Config, NotComputed, Refused, choice, optional_number

# No clamp before exp; a log-ratio that is no finite number becomes 0, but not in a KL.
GUARD = Guard(bound=np.inf, non_finite="equal", epsilon=0.0)
# One policy stands for two: every log-ratio is 0.
ONE_POLICY = Guard(bound=0.0, before_sums=True, non_finite="equal", epsilon=0.0)
SETTINGS: Mapping[str, Any] = {
    "use_decoupled_loss": False,
    "recompute_logprob": False,
    "rejection_sampling": False,
    "rejection_sampling.level": "token",
    "rejection_sampling.action": "mask",
    "rejection_sampling.metric": "ratio",
    "rejection_sampling.agg": "mean",
    "rejection_sampling.upper": 5.0,
    "rejection_sampling.lower": None,
    "m2_threshold": None,
    "prox_logp_method": "recompute",
}
# Those of the block `rejection_sampling`.
BLOCK = "rejection_sampling"
OF_BLOCK = tuple(name for name in SETTINGS if name.startswith(f"{BLOCK}."))


def of_block(**own: Any) -> dict[str, Any]:
    """Return settings of the block under their dotted names."""
    return {f"{BLOCK}.{name}": value for name, value in own.items()}


_DECOUPLED: Config = {"use_decoupled_loss": True}
_RS: Config = {**_DECOUPLED, "rejection_sampling": True}
# Modes at the defaults of RejectionSamplingConfig; the bound of M2PO, which has no default, is that
# of its paper, arXiv 2510.01161.
PRESETS: Mapping[str, Config] = {
    "default": {},
    "recomputed": {"recompute_logprob": True},
    "decoupled_loss": _DECOUPLED,
    "token_mask": _RS,
    "token_clamp": {**_RS, **of_block(action="clamp")},
    "token_kl_k1": {**_RS, **of_block(metric="kl_k1")},
    "token_kl_k2": {**_RS, **of_block(metric="kl_k2")},
    "token_kl_k3": {**_RS, **of_block(metric="kl_k3")},
    "sequence_mask": {**_RS, **of_block(level="sequence")},
    "sequence_sum_mask": {**_RS, **of_block(level="sequence", agg="sum")},
    "sequence_max_mask": {**_RS, **of_block(level="sequence", agg="max")},
    "sequence_clamp": {**_RS, **of_block(level="sequence", action="clamp")},
    "sequence_kl_k1": {**_RS, **of_block(level="sequence", metric="kl_k1")},
    "sequence_kl_k2": {**_RS, **of_block(level="sequence", metric="kl_k2")},
    "sequence_kl_k3": {**_RS, **of_block(level="sequence", metric="kl_k3")},
    "m2po": {**_DECOUPLED, "m2_threshold": 0.04},
}


def _raw(tokens: Tokens) -> Array:
    """Return log-ratios without any guard; all are 0 where one policy stands for two."""
    return tokens.log_ratio if tokens.guard.before_sums else tokens.raw_log_ratio


def _tail_mean(tokens: Tokens) -> Array:
    """Return the mean square of each log-ratio and all smaller ones of the batch, [tokens].

    It is below 0 for the smallest of all, which therefore always stays. No number counts as the
    largest; equal ones are dropped in the order of the batch.
    """
    squares = np.square(_raw(tokens))
    keys = np.where(np.isnan(squares), -np.inf, -squares)
    order = np.argsort(keys, kind="stable")
    sums = np.cumsum(squares[order][::-1])[::-1]
    means = sums / np.arange(len(order), 0, -1)
    means[len(order) - 1 :] = -1.0
    values = np.empty_like(means)
    values[order] = means
    return values


STATISTICS.ship(
    (
        Statistic(
            name="forward_k1",
            formula="log_ratio, that of a NaN too",
            of=_raw,
            source="areal 1.0.4, areal/utils/data.py, KLEstimator",
        ),
        Statistic(
            name="forward_k2",
            formula="log_ratio^2 / 2, that of a NaN too",
            of=lambda tokens: np.square(_raw(tokens)) / 2.0,
            source="areal 1.0.4, areal/utils/data.py, KLEstimator",
        ),
        Statistic(
            name="forward_k3",
            formula="exp(-log_ratio) - 1 + log_ratio, that of a NaN too",
            of=lambda tokens: exp(-_raw(tokens)) - 1.0 + _raw(tokens),
            source="areal 1.0.4, areal/utils/data.py, KLEstimator",
        ),
        Statistic(
            name="tail_second_moment",
            formula="mean of log_ratio^2 over this token and all of the batch with a smaller one",
            unit="squared nats",
            of=_tail_mean,
            needs_whole_batch=True,
            before_everything=True,
            source="arXiv 2510.01161; areal 1.0.4, areal/trainer/ppo/actor.py",
        ),
    )
)


def read(config: Config) -> Correction:
    """Read the canonical correction; all bounds are included but that of M2PO."""
    method = choice(config, "prox_logp_method", ("recompute", "metrics", "loglinear"))
    decoupled, recomputed = bool(config["use_decoupled_loss"]), bool(config["recompute_logprob"])
    if decoupled and method == "loglinear":
        raise NotComputed(
            "prox_logp_method: loglinear puts the proximal log-probs between the sampler's and the "
            "current ones: of a token that was sampled k versions ago AReaL sees (k - 1) / k of "
            "the log-ratio to the current ones, and none for k of 1 or 0, whatever the engines "
            "did. A table lacks k: policy_version says which weights sampled a token, and no "
            "column which version the trainer was at",
            "take recompute, which is what loglinear approximates",
        )
    first = m2po(config)
    correction = Correction(
        rejections=first,
        zeroing=first,
        guard=GUARD if decoupled else ONE_POLICY,
        # The sampler's log-probs are the old ones: the PPO ratio has the mismatch in it.
        mode="decoupled" if decoupled or recomputed else "bypass",
        loss="ppo_clip" if decoupled or recomputed else "",
    )
    if not config[BLOCK]:
        return replace(correction, zeroing=())
    return _sampled(config, correction, first)


def m2po(config: Config) -> tuple[Rejection, ...]:
    """Return the rejection of tokens until the mean square of the rest is below the threshold."""
    threshold = optional_number(config, "m2_threshold")
    if threshold is None:
        return ()
    return (Rejection("token_tail_second_moment", float(np.nextafter(threshold, -np.inf))),)


def _sampled(config: Config, correction: Correction, first: tuple[Rejection, ...]) -> Correction:
    """Return the correction with the test of `rejection_sampling` after M2PO."""
    level, action, metric, agg, upper, lower = checked(config)
    test = _test(level, metric, agg, upper, lower, first)
    by_ratio = metric == "ratio" and level == "sequence"
    weighting = (
        Weighting("geometric", np.inf, over=first) if by_ratio else Weighting("token", np.inf)
    )
    if action == "mask":
        tests = (*first, test)
        return replace(correction, weighting=weighting, rejections=tests, zeroing=tests)
    lower = lower or 0.0
    # exp of a mean is within bounds around 1 wherever exp of the sum is; and where exp of the
    # largest is, unless there is a lower bound.
    needs_test = (agg == "max" and lower > 0.0) or (agg == "sum" and lower > 1.0)
    only_outside = (test,) if by_ratio and needs_test else ()
    weighting = replace(
        weighting, upper=upper, lower=lower, outside="clip", only_outside=only_outside
    )
    return replace(correction, weighting=weighting)


def _test(
    level: str,
    metric: str,
    agg: str,
    upper: float,
    lower: float | None,
    over: tuple[Rejection, ...],
) -> Rejection:
    """Return what is held against the bounds; of sequences over what M2PO leaves."""
    kl = metric.replace("kl_", "forward_")
    if level == "token":
        return Rejection("token" if metric == "ratio" else f"token_{kl}", upper, lower)
    if metric != "ratio":
        return Rejection(f"seq_{agg}_{kl}", upper, lower, over)
    names = {"sum": "sequence", "mean": "geometric", "max": "seq_max_ratio"}
    return Rejection(names[agg], upper, lower, over)


def checked(config: Config) -> tuple[str, str, str, str, float, float | None]:
    """Return the settings of the block, on some of which the trainer stops."""
    level = str(choice(config, f"{BLOCK}.level", ("token", "sequence")))
    action = str(choice(config, f"{BLOCK}.action", ("mask", "clamp")))
    metric = str(choice(config, f"{BLOCK}.metric", ("ratio", "kl_k1", "kl_k2", "kl_k3")))
    agg = str(choice(config, f"{BLOCK}.agg", ("sum", "mean", "max")))
    upper, lower = (
        optional_number(config, f"{BLOCK}.upper"),
        optional_number(config, f"{BLOCK}.lower"),
    )
    if upper is None:
        raise Refused("upper: wanted a number, got null", "its default is 5.0")
    if lower is not None and lower > upper:
        raise Refused(f"lower: {lower:g} is above upper, {upper:g}", "exchange them")
    if metric == "ratio" and not upper > 1.0:
        raise Refused(f"upper: {upper:g} is not above 1, which metric ratio asks for", "5.0")
    if metric == "ratio" and lower is not None and not lower > 0.0:
        raise Refused(f"lower: {lower:g} is not above 0, which metric ratio asks for", "null")
    if metric in ("kl_k2", "kl_k3") and not upper > 0.0:
        raise Refused(f"upper: {upper:g} is not above 0, which metric {metric} asks for", "0.5")
    if action == "clamp" and metric != "ratio":
        raise Refused(f"action: clamp takes metric ratio alone, not {metric}", "take mask")
    return level, action, metric, agg, upper, lower
