"""How far apart both policies are: probabilities and perplexities."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics.intervals import NONE
from rcdiag.statistics.metrics.log_ratios import largest
from rcdiag.statistics.metrics.metric import Averaged, Guide, Metric, Whole
from rcdiag.statistics.ranks import spearman
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def prob_diff_std(t: Totals) -> Array:
    """Standard deviation (n - 1) of |p_target - p_behavior| over tokens, as verl logs it."""
    squares = t.sums["prob_diff_squared"] - np.square(t.sums["prob_diff"]) / t.tokens
    return np.sqrt(np.maximum(squares, 0.0) / (t.tokens - 1.0))


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
    return np.where(varies, covariance / (np.sqrt(p_variance) * np.sqrt(q_variance)), np.nan)


def _log_ppl_diffs(suite: Suite) -> Array:
    table = suite.state.table
    return -table.sums["log_ratio"] / table.lengths


PROBABILITIES: dict[str, Metric] = {
    "prob_diff_mean": Averaged(
        label="mean |probability difference|",
        ideal=0.0,
        about="E|p_target - p_behavior| over tokens",
        guide=Guide(5e-3, 1e-2, "verl FAQ: above 0.01 precision problem"),
        headline=True,
        formula=lambda t: t.per_token("prob_diff"),
    ),
    "prob_diff_std": Averaged(
        label="standard deviation of |probability difference|",
        ideal=0.0,
        about="over tokens, n - 1 in the denominator as in verl",
        formula=prob_diff_std,
    ),
    "prob_diff_max": Whole(
        label="max |probability difference|",
        ideal=0.0,
        about="largest |p_target - p_behavior| of any token; an extreme has no interval",
        of_suite=lambda s: largest("prob_diff", s),
        of_log_ratios=False,
    ),
    "prob_pearson": Averaged(
        label="Pearson correlation of probabilities",
        ideal=1.0,
        about="over tokens of p_behavior and p_target; inflated where most are near 0 or 1",
        formula=pearson,
    ),
    "prob_spearman": Whole(
        label="Spearman correlation of probabilities",
        ideal=1.0,
        about="over tokens that both policies give between 0.05 and 0.95, where ranks mean "
        "something; on a sample above 262,144 such tokens",
        of_suite=lambda s: spearman(s.state.ranks),
    ),
}

PERPLEXITIES: dict[str, Metric] = {
    "behavior_ppl": Averaged(
        label="perplexity, behavior",
        ideal=None,
        about="mean over sequences of exp(-mean log-prob under the behavior policy)",
        formula=lambda t: t.per_sequence("behavior_ppl"),
    ),
    "target_ppl": Averaged(
        label="perplexity, target",
        ideal=None,
        about="mean over sequences of exp(-mean log-prob under the target policy)",
        formula=lambda t: t.per_sequence("target_ppl"),
    ),
    "ppl_ratio": Averaged(
        label="perplexity ratio",
        ideal=1.0,
        about="mean over sequences of target over behavior perplexity",
        headline=True,
        formula=lambda t: t.per_sequence("ppl_ratio"),
    ),
    "log_ppl_diff_mean": Averaged(
        label="mean log-perplexity difference",
        unit="nats",
        ideal=0.0,
        about="mean over sequences of log perplexity of target less that of behavior, "
        "-mean log_ratio of each",
        formula=lambda t: t.per_sequence("log_ppl_diff"),
    ),
    "log_ppl_diff_abs_mean": Averaged(
        label="mean |log-perplexity difference|",
        unit="nats",
        ideal=0.0,
        about="mean over sequences of |log perplexity of target less that of behavior|",
        formula=lambda t: t.per_sequence("log_ppl_diff_abs"),
    ),
    "log_ppl_diff_max": Whole(
        label="max log-perplexity difference",
        unit="nats",
        ideal=0.0,
        about="largest of any sequence",
        of_suite=lambda s: (float(_log_ppl_diffs(s).max()), NONE),
    ),
    "log_ppl_diff_min": Whole(
        label="min log-perplexity difference",
        unit="nats",
        ideal=0.0,
        about="smallest of any sequence",
        of_suite=lambda s: (float(_log_ppl_diffs(s).min()), NONE),
    ),
}
