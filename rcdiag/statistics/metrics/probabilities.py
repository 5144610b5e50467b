"""Metrics that compare probabilities and perplexities of the policies."""

from __future__ import annotations

import numpy as np

from rcdiag.results.guide import Guide
from rcdiag.statistics.intervals import NONE
from rcdiag.statistics.metrics.log_ratios import largest
from rcdiag.statistics.metrics.metric import (
    MAGNITUDE,
    NO_INTERVAL,
    PAIR_OF_EXAMPLE,
    RATIOS_OF_EXAMPLE,
    SYMMETRIC,
    Metric,
)
from rcdiag.statistics.ranks import spearman
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def prob_diff_std(t: Totals) -> Array:
    """Return the standard deviation (n - 1) of |p_target - p_behavior| over tokens (verl)."""
    squares = t.sums["prob_diff_squared"] - np.square(t.sums["prob_diff"]) / t.tokens
    return np.sqrt(np.maximum(squares, 0.0) / (t.tokens - 1.0))


def pearson(t: Totals) -> Array:
    """Return the Pearson correlation of both probabilities over tokens; NaN if one is constant.

    Computed from 1 - p of both policies, which has the same correlation.
    Source: MiniMax-M1 (2506.13585); verl `training/rollout_actor_probs_pearson_corr`.
    """
    p, q = t.per_token("behavior_miss"), t.per_token("target_miss")
    p_squared, q_squared = t.per_token("behavior_miss_squared"), t.per_token("target_miss_squared")
    covariance = t.per_token("miss_product") - p * q
    p_variance, q_variance = p_squared - p * p, q_squared - q * q
    # If one side is constant, the computed variance is rounding noise of either sign.
    varies = (p_variance > 1e-12 * p_squared) & (q_variance > 1e-12 * q_squared)
    return np.where(varies, covariance / (np.sqrt(p_variance) * np.sqrt(q_variance)), np.nan)


def _log_ppl_diffs(suite: Suite) -> Array:
    table = suite.state.table
    return -table.sums["log_ratio"] / table.lengths


_PROBS = "|p_target - p_behavior|"
_DIFF = "-mean log_ratio of the sequence"
_ABOVE = "target less behavior: positive where the target's perplexity is the higher one"


def _keys(key: str, empty: str, *, slime: bool = True) -> dict[str, str]:
    """Return the keys of verl and slime for a number by sequence; an empty row adds `empty`."""
    keys = {
        "verl": f"rollout_corr/{key} (mismatch/mismatch_{key} in 0.6.0): over all rows, one "
        f"without a token adds {empty}"
    }
    return keys | ({"slime": f"mis_{key}: a row without a token adds 0"} if slime else {})


PROBABILITIES = (
    Metric(
        name="prob_diff_mean",
        family=MAGNITUDE,
        label="mean |probability difference|",
        says="The mean distance between both policies' probabilities of a token.",
        formula=f"E{_PROBS} over tokens",
        ideal=0.0,
        direction=SYMMETRIC,
        guide=Guide(
            warning=5e-3,
            error=1e-2,
            source="verl, docs/faq/faq.rst: below 0.005 normal, above 0.01 a precision problem",
        ),
        elsewhere={"verl": "training/rollout_probs_diff_mean: never in bypass mode"},
        example=PAIR_OF_EXAMPLE + "0.2005",
        headline=True,
        from_totals=lambda t: t.per_token("prob_diff"),
        bound=0.0,
        most=1.0,
    ),
    Metric(
        name="prob_diff_std",
        family=MAGNITUDE,
        label="standard deviation of |probability difference|",
        says="How much the distance between both probabilities differs between tokens, with N - 1 "
        "in the denominator as in verl.",
        formula=f"sqrt(sum({_PROBS} - its mean)^2 / (N - 1))",
        ideal=0.0,
        direction=SYMMETRIC,
        elsewhere={"verl": "training/rollout_probs_diff_std"},
        example=PAIR_OF_EXAMPLE + "0.1962",
        from_totals=prob_diff_std,
        bound=0.0,
    ),
    Metric(
        name="prob_diff_max",
        family=MAGNITUDE,
        label="max |probability difference|",
        says="The largest distance between both policies' probabilities of a token. An extreme has "
        "no interval.",
        formula=f"max {_PROBS} over tokens",
        ideal=0.0,
        direction=SYMMETRIC,
        elsewhere={"verl": "training/rollout_probs_diff_max"},
        example=PAIR_OF_EXAMPLE + "0.4712",
        from_suite=lambda s: largest("prob_diff", s),
        interval=NO_INTERVAL,
        of_log_ratios=False,
    ),
    Metric(
        name="prob_pearson",
        family=MAGNITUDE,
        label="Pearson correlation of probabilities",
        says="The correlation of both policies' probabilities of a token. It is inflated where "
        "most of them are near 0 or 1.",
        formula="Cov(p_behavior, p_target) / (sd(p_behavior) sd(p_target))",
        ideal=1.0,
        direction=SYMMETRIC,
        source="MiniMax-M1, arXiv 2506.13585",
        elsewhere={"verl": "training/rollout_actor_probs_pearson_corr"},
        example=PAIR_OF_EXAMPLE + "-0.03982",
        from_totals=pearson,
        bound=1.0,
        least=-1.0,
    ),
    Metric(
        name="prob_spearman",
        family=MAGNITUDE,
        label="Spearman correlation of probabilities",
        says="The rank correlation of both policies' probabilities, over the tokens that "
        "both give between 0.05 and 0.95, where ranks mean something. Above 262,144 such tokens it "
        "is that of a sample.",
        formula="Pearson correlation of the ranks of p_behavior and p_target",
        ideal=1.0,
        direction=SYMMETRIC,
        example=PAIR_OF_EXAMPLE + "-0.1",
        from_suite=lambda s: spearman(s.state.ranks),
    ),
)

PERPLEXITIES = (
    Metric(
        name="behavior_ppl",
        family=MAGNITUDE,
        label="perplexity, behavior",
        says="The perplexity of a sequence under the behavior policy, averaged over sequences.",
        formula="mean over sequences of exp(-mean log-prob under the behavior policy)",
        ideal=None,
        direction="of the behavior policy alone",
        elsewhere=_keys("rollout_ppl", "1"),
        example=PAIR_OF_EXAMPLE + "3.108",
        see=("rollout_corr/rollout_ppl",),
        from_totals=lambda t: t.per_sequence("behavior_ppl"),
        bound=1.0,
    ),
    Metric(
        name="target_ppl",
        family=MAGNITUDE,
        label="perplexity, target",
        says="The perplexity of a sequence under the target policy, averaged over sequences.",
        formula="mean over sequences of exp(-mean log-prob under the target policy)",
        ideal=None,
        direction="of the target policy alone",
        elsewhere=_keys("training_ppl", "1"),
        example=PAIR_OF_EXAMPLE + "4.488",
        see=("rollout_corr/training_ppl",),
        from_totals=lambda t: t.per_sequence("target_ppl"),
        bound=1.0,
    ),
    Metric(
        name="ppl_ratio",
        family=MAGNITUDE,
        label="perplexity ratio",
        says="The target's perplexity of a sequence over that of the behavior policy, averaged "
        "over sequences.",
        formula="E[exp(-mean log_ratio)] over sequences",
        ideal=1.0,
        direction="target over behavior: above 1 where the target's perplexity is the higher one",
        elsewhere=_keys("ppl_ratio", "1"),
        example=RATIOS_OF_EXAMPLE + "1.473",
        see=("rollout_corr/ppl_ratio",),
        from_totals=lambda t: t.per_sequence("ppl_ratio"),
        bound=0.0,
    ),
    Metric(
        name="log_ppl_diff_mean",
        family=MAGNITUDE,
        label="mean log-perplexity difference",
        says="The log perplexity of a sequence under the target less that under the behavior "
        "policy, averaged over sequences.",
        formula=f"mean over sequences of {_DIFF}",
        unit="nats",
        ideal=0.0,
        direction=_ABOVE,
        elsewhere=_keys("log_ppl_diff", "0"),
        example=RATIOS_OF_EXAMPLE + "0.175",
        see=("rollout_corr/log_ppl_diff",),
        from_totals=lambda t: t.per_sequence("log_ppl_diff"),
    ),
    Metric(
        name="log_ppl_diff_abs_mean",
        family=MAGNITUDE,
        label="mean |log-perplexity difference|",
        says="The distance between both log perplexities of a sequence, averaged over sequences.",
        formula="mean over sequences of |mean log_ratio|",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        elsewhere=_keys("log_ppl_abs_diff", "0"),
        example=RATIOS_OF_EXAMPLE + "0.675",
        see=("rollout_corr/log_ppl_abs_diff",),
        from_totals=lambda t: t.per_sequence("log_ppl_diff_abs"),
        bound=0.0,
    ),
    Metric(
        name="log_ppl_diff_max",
        family=MAGNITUDE,
        label="max log-perplexity difference",
        says="The largest difference of log perplexities, target less behavior, of any sequence. "
        "An extreme has no interval.",
        formula=f"max over sequences of {_DIFF}",
        unit="nats",
        ideal=0.0,
        direction=_ABOVE,
        elsewhere=_keys("log_ppl_diff_max", "0", slime=False),
        example=RATIOS_OF_EXAMPLE + "0.85",
        see=("rollout_corr/log_ppl_diff_max",),
        from_suite=lambda s: (float(_log_ppl_diffs(s).max()), NONE),
        interval=NO_INTERVAL,
    ),
    Metric(
        name="log_ppl_diff_min",
        family=MAGNITUDE,
        label="min log-perplexity difference",
        says="The smallest difference of log perplexities, target less behavior, of any sequence. "
        "An extreme has no interval.",
        formula=f"min over sequences of {_DIFF}",
        unit="nats",
        ideal=0.0,
        direction=_ABOVE,
        elsewhere=_keys("log_ppl_diff_min", "0", slime=False),
        example=RATIOS_OF_EXAMPLE + "-0.5",
        see=("rollout_corr/log_ppl_diff_min",),
        from_suite=lambda s: (float(_log_ppl_diffs(s).min()), NONE),
        interval=NO_INTERVAL,
    ),
)
