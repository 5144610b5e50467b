"""The mismatch metrics: one entry each, in the order in which a reader should see them.

`formula` takes `Totals` and gives one value per replicate, so the value and its interval come from
the same lines. Direction everywhere: log_ratio = log target - log behavior, in nats; tokens are
taken to be sampled by the behavior policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rcdiag.statistics.table import Array
from rcdiag.statistics.totals import Totals


@dataclass(frozen=True, slots=True)
class Guide:
    """From where on a value is a warning or an error, and who says so."""

    warning: float
    error: float
    source: str

    def level(self, value: float) -> str | None:
        """ok, warning or error; None for a value that is no number."""
        if np.isnan(value):
            return None
        low_is_bad = self.error < self.warning
        sign = -1.0 if low_is_bad else 1.0
        if sign * value >= sign * self.error:
            return "error"
        return "warning" if sign * value >= sign * self.warning else "ok"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number about a pair of policies."""

    label: str
    unit: str  # "" for a pure number
    ideal: float | None  # its value when both policies are the same
    formula: Callable[[Totals], Array]  # [replicates]
    about: str  # what it is, in one line, with its formula
    guide: Guide | None = None
    resampled: bool = True  # False for extremes: drawing anew tells nothing about them


PROPOSAL = "rcdiag's proposal"


def pearson(t: Totals) -> Array:
    """Pearson correlation of behavior and target probabilities over tokens; NaN if one is constant.

    From 1 - p on both sides, whose correlation is the same.
    Source: MiniMax-M1 (2506.13585); verl `training/rollout_actor_probs_pearson_corr`.
    """
    p, q = t.per_token("behavior_miss"), t.per_token("target_miss")
    p_squared, q_squared = t.per_token("behavior_miss_squared"), t.per_token("target_miss_squared")
    covariance = t.per_token("miss_product") - p * q
    p_variance, q_variance = p_squared - p * p, q_squared - q * q
    # What is left of the variance of a constant side is rounding of either sign.
    varies = (p_variance > 1e-12 * p_squared) & (q_variance > 1e-12 * q_squared)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(varies, covariance / np.sqrt(p_variance * q_variance), np.nan)


def ess(t: Totals, level: str) -> Array:
    """Effective sample size (sum ratio)^2 / (n sum ratio^2), a fraction in (0, 1] of tokens or
    sequences; in log space, so that no ratio overflows.

    Source: Kong 1992; Owen, Monte Carlo theory, methods and examples, ch. 9.
    """
    prefix, count = ("seq_", t.sequences) if level == "seq" else ("", t.tokens)
    log_sum, log_squares = t.log_sums[f"{prefix}ratio"], t.log_sums[f"{prefix}ratio_squared"]
    with np.errstate(invalid="ignore"):
        return np.exp(2.0 * log_sum - log_squares - np.log(count))


METRICS: dict[str, Metric] = {
    "k3_kl": Metric(
        "KL by k3",
        "nats",
        0.0,
        lambda t: t.per_token("k3"),
        "KL(behavior || target) per token, E[ratio - 1 - log_ratio]; never negative",
        Guide(1e-3, 1e-2, f"{PROPOSAL}; NeMo RL calls below 0.001 acceptable"),
    ),
    "k1_kl": Metric(
        "KL by k1",
        "nats",
        0.0,
        lambda t: -t.per_token("log_ratio"),
        "KL(behavior || target) per token, E[-log_ratio]; unbiased, noisy, may be negative",
    ),
    "k2_kl": Metric(
        "KL by k2",
        "nats",
        0.0,
        lambda t: 0.5 * t.per_token("log_ratio_squared"),
        "E[log_ratio^2] / 2 per token; the size of the mismatch whoever sampled",
        Guide(5e-3, 2e-2, f"{PROPOSAL}; M2PO keeps E[log_ratio^2] below 0.04"),
    ),
    "log_ratio_abs_mean": Metric(
        "mean |log-ratio|",
        "nats",
        0.0,
        lambda t: t.per_token("log_ratio_abs"),
        "E|log_ratio| over tokens",
    ),
    "log_ratio_abs_max": Metric(
        "max |log-ratio|",
        "nats",
        0.0,
        lambda t: t.maxima["log_ratio_abs"],
        "largest |log_ratio| of any token",
        resampled=False,
    ),
    "behavior_ppl": Metric(
        "perplexity, behavior",
        "",
        None,
        lambda t: t.per_sequence("behavior_ppl"),
        "mean over sequences of exp(-mean log-prob under the behavior policy)",
    ),
    "target_ppl": Metric(
        "perplexity, target",
        "",
        None,
        lambda t: t.per_sequence("target_ppl"),
        "mean over sequences of exp(-mean log-prob under the target policy)",
    ),
    "ppl_ratio": Metric(
        "perplexity ratio",
        "",
        1.0,
        lambda t: t.per_sequence("ppl_ratio"),
        "mean over sequences of target over behavior perplexity",
    ),
    "prob_diff_mean": Metric(
        "mean |probability difference|",
        "",
        0.0,
        lambda t: t.per_token("prob_diff"),
        "E|p_target - p_behavior| over tokens",
        Guide(5e-3, 1e-2, "verl FAQ: above 0.01 precision problem"),
    ),
    "prob_diff_max": Metric(
        "max |probability difference|",
        "",
        0.0,
        lambda t: t.maxima["prob_diff"],
        "largest |p_target - p_behavior| of any token",
        resampled=False,
    ),
    "prob_pearson": Metric(
        "Pearson correlation of probabilities",
        "",
        1.0,
        pearson,
        "correlation over tokens of p_behavior and p_target; inflated where most are near 0 or 1",
    ),
    "chi2_token": Metric(
        "chi-squared, token",
        "",
        0.0,
        lambda t: t.per_token("ratio_squared_excess"),
        "chi2(target || behavior) per token, E[ratio^2] - 1; its estimate may be negative",
        Guide(1.0, np.inf, "verl rollout-correction guide: above 1 severe"),
    ),
    "chi2_seq": Metric(
        "chi-squared, sequence",
        "",
        0.0,
        lambda t: t.per_sequence("seq_ratio_squared_excess"),
        "the same of whole sequences, E[(prod ratio)^2] - 1, unclamped",
    ),
    "ess_token": Metric(
        "ESS of tokens, raw ratios",
        "fraction",
        1.0,
        lambda t: ess(t, "token"),
        "(sum ratio)^2 / (n sum ratio^2) over tokens, unclamped",
    ),
    "ess_seq": Metric(
        "ESS of sequences, raw ratios",
        "fraction",
        1.0,
        lambda t: ess(t, "seq"),
        "(sum ratio)^2 / (n sum ratio^2) over sequences with the product of their token ratios",
        Guide(0.5, 0.1, PROPOSAL),
    ),
}
