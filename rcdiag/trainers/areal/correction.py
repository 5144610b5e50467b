"""AReaL's correction: M2PO, then one test of tokens or sequences.

Sources: areal 1.0.4 and AReaL commit cbff54d6 (2026-08-22), areal/api/cli_args.py
(`RejectionSamplingConfig`, `PPOActorConfig`), areal/utils/functional/functional.py
(`apply_rejection_sampling`) and areal/trainer/ppo/actor.py.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Guard, Tokens, exp
from rcdiag.corrections.bounds import Window, log_of, windows_of
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.settings_table import NotComputed, Refused, Settings
from rcdiag.trainers.writing import Facts

# No clamp before exp; a log-ratio that is not finite becomes 0, except in a KL.
GUARD = Guard(bound=np.inf, non_finite="equal", epsilon=0.0)
# A single policy in both roles: every log-ratio is 0.
ONE_POLICY = Guard(bound=0.0, before_sums=True, non_finite="equal", epsilon=0.0)
BLOCK, M2PO = "rejection_sampling", "token_tail_second_moment"
# The reduction of a sequence's log-ratios -> the statistic of a rejection.
RATIO_OF_SEQUENCE = {"sum": "sequence", "mean": "geometric", "max": "seq_max_ratio"}


def _raw(tokens: Tokens) -> Array:
    """Return log-ratios without a guard; 0 if a single policy has both roles."""
    return tokens.log_ratio if tokens.guard.before_sums else tokens.raw_log_ratio


def _tail_mean(tokens: Tokens) -> Array:
    """Return for each token the mean of log_ratio^2 over it and all smaller ones, [tokens].

    For the smallest it is -1, so that it always stays. NaN counts as the largest; equal values are
    dropped in the order of the batch.
    """
    squares: Array = np.square(_raw(tokens))
    keys = np.where(np.isnan(squares), -np.inf, -squares)
    order = np.argsort(keys, kind="stable")
    sums = np.cumsum(squares[order][::-1])[::-1]
    means = sums / np.arange(len(order), 0, -1)
    means[len(order) - 1 :] = -1.0
    values: Array = np.empty_like(means)
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


def read(settings: Settings) -> Correction:
    """Return M2PO and the test of the block; bounds are inclusive, except M2PO's."""
    method = settings["prox_logp_method"]
    decoupled = bool(settings["use_decoupled_loss"])
    recomputed = bool(settings["recompute_logprob"])
    if decoupled and method == "loglinear":
        raise NotComputed(
            "prox_logp_method: loglinear interpolates the proximal log-probs between the sampler's "
            "and the current ones: for a token sampled k versions ago, AReaL uses (k - 1) / k of "
            "the log-ratio to the current log-probs, and none if k is 1 or 0, whatever the engines "
            "did. A table does not contain k: policy_version is the version that sampled a token, "
            "but no column has the version that the trainer was at",
            "use recompute, which loglinear approximates",
        )
    first = m2po(settings)
    correction = Correction(
        rejections=first,
        zeroing=first,
        guard=GUARD if decoupled else ONE_POLICY,
        # The sampler's log-probs are the old ones: the PPO ratio includes the mismatch.
        mode="decoupled" if decoupled or recomputed else "bypass",
        loss="ppo_clip" if decoupled or recomputed else "",
    )
    if not settings[BLOCK]:
        return replace(correction, zeroing=())
    return _with_test(settings, correction, first)


def m2po(settings: Settings) -> tuple[Rejection, ...]:
    """Return the rejection of tokens until the mean log_ratio^2 of the rest is below threshold."""
    threshold = settings["m2_threshold"]
    if threshold is None:
        return ()
    return (Rejection(M2PO, float(np.nextafter(threshold, -np.inf))),)


def _with_test(
    settings: Settings, correction: Correction, first: tuple[Rejection, ...]
) -> Correction:
    """Return the correction with the test of `rejection_sampling` after M2PO."""
    level, action, metric, agg, upper, lower = _checked(settings)
    # The statistic that is compared with the bounds; for sequences, over the tokens M2PO keeps.
    kl = metric.replace("kl_", "forward_")
    if level == "token":
        test = Rejection("token" if metric == "ratio" else f"token_{kl}", upper, lower)
    else:
        statistic = RATIO_OF_SEQUENCE[agg] if metric == "ratio" else f"seq_{agg}_{kl}"
        test = Rejection(statistic, upper, lower, first)
    by_ratio = metric == "ratio" and level == "sequence"
    weighting = (
        Weighting("geometric", np.inf, over=first) if by_ratio else Weighting("token", np.inf)
    )
    if action == "mask":
        tests = (*first, test)
        return replace(correction, weighting=weighting, rejections=tests, zeroing=tests)
    lower = lower or 0.0
    # If exp of the sum is within bounds around 1, so is exp of the mean; likewise if exp of the
    # largest is, unless there is a lower bound.
    needs_test = (agg == "max" and lower > 0.0) or (agg == "sum" and lower > 1.0)
    only_outside = (test,) if by_ratio and needs_test else ()
    weighting = replace(
        weighting, upper=upper, lower=lower, outside="clip", only_outside=only_outside
    )
    return replace(correction, weighting=weighting)


def _checked(settings: Settings) -> tuple[str, str, str, str, float, float | None]:
    """Return the settings of the block; Refused if the trainer stops on them."""
    level, action, metric, agg, upper, lower = (
        settings[f"{BLOCK}.{name}"]
        for name in ("level", "action", "metric", "agg", "upper", "lower")
    )
    if metric == "binary_kl":
        raise Refused(
            "rejection_sampling.metric: binary_kl, a dead option: its help offers it and its loss "
            "has it (KPop), but the check of RejectionSamplingConfig refuses it",
            "take kl_k2 or kl_k3, or a version of AReaL whose _VALID_METRICS has binary_kl",
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
        raise Refused(f"action: clamp only works with metric ratio, not {metric}", "use mask")
    return level, action, metric, agg, upper, lower


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return how many policies the loss distinguishes, and the settings of rejection_sampling.

    There is no `level` if the block cannot express the weights or the test.
    """
    tests = [one for one in correction.rejections if one.statistic != M2PO]
    one_policy = correction.guard.before_sums and not correction.guard.bound
    own: Facts = {
        "one_policy": one_policy,
        "decoupled": correction.mode == "decoupled" and not one_policy,
        "recomputed": correction.mode != "bypass",
        "tests": [one.statistic for one in tests],
    }
    for one in correction.rejections:
        if one.statistic == M2PO:  # its bound is exclusive
            own["m2_threshold"] = float(np.nextafter(one.upper, np.inf))
    if correction.weighting is None:
        return own
    if tests:
        return own | {"action": "mask"} | _mask(tests[0])
    level = {"token": "token", "geometric": "sequence"}.get(facts["weights"])
    clamp = {"action": "clamp", "metric": "ratio", "level": level}
    if level == "sequence":
        # The statistic that must be out of bounds too, for the weight to be clamped.
        tested = [one.statistic for one in correction.weighting.only_outside]
        reductions = {statistic: agg for agg, statistic in RATIO_OF_SEQUENCE.items()}
        clamp["agg"] = reductions[tested[-1]] if tested else "mean"
    return own | clamp | {"block.lower": facts["lower"], "block.upper": facts["upper"]}


def _mask(test: Rejection) -> Facts:
    """Return a test as a block with action mask; {} if AReaL has no such test."""
    place, _, kl = test.statistic.partition("_forward_")
    if kl in ("k1", "k2", "k3"):
        own: Facts = {"metric": f"kl_{kl}", "kl.from": test.lower, "kl.to": test.upper}
        if place == "token":
            return {"level": "token"} | own
        return {"level": "sequence", "agg": place.removeprefix("seq_")} | own
    windows = windows_of([Rejection(test.statistic, test.upper, test.lower)])
    levels = {"token": None, **{name: agg for agg, name in RATIO_OF_SEQUENCE.items()}}
    name = next(iter(windows), test.statistic)
    if name not in levels and windows:
        return {}
    window = windows.get(name, Window(-np.inf, np.inf))
    if test.statistic == "seq_max_ratio":
        window = Window(log_of(test.lower), log_of(test.upper))
    lower, upper = float(np.exp(window.lower)), float(np.exp(window.upper))
    own = {"metric": "ratio", "block.lower": lower, "block.upper": upper}
    agg = levels.get(name)
    return own | ({"level": "token"} if agg is None else {"level": "sequence", "agg": agg})
