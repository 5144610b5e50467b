"""Metrics of mismatch: sizes of the tokens' log-ratios."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rcdiag.results.guide import Guide
from rcdiag.statistics.intervals import NONE, Interval
from rcdiag.statistics.metrics.metric import (
    BEHAVIOR_SAMPLED,
    MAGNITUDE,
    NO_INTERVAL,
    RATIOS_OF_EXAMPLE,
    SYMMETRIC,
    Metric,
)
from rcdiag.statistics.quantiles import quantile_interval
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def log_ratio_std(t: Totals) -> Array:
    """Return the standard deviation of log_ratio over tokens, nats."""
    variance = 2.0 * t.per_token("k2") - np.square(t.per_token("log_ratio"))
    std: Array = np.sqrt(np.maximum(variance, 0.0))
    return std


def log_ratio_abs_std(t: Totals) -> Array:
    """Return the standard deviation of |log_ratio| over tokens, nats."""
    mean = t.per_token("log_ratio_abs")
    std: Array = np.sqrt(np.maximum(2.0 * t.per_token("k2") - np.square(mean), 0.0))
    return std


def spread_beyond(of_totals: Callable[[Totals], Array], suite: Suite, high: float) -> float:
    """Return how large a standard deviation may be, nats, given the upper end of the sample.

    A sample of a heavy tail rarely contains the tokens that dominate it: see `largest_mean_square`.
    """
    seen = float(of_totals(suite.point)[0])
    return max(high, float(np.sqrt(seen**2 + suite.likely_squares_beyond)))


def largest(name: str, suite: Suite) -> tuple[float, Interval]:
    """Return the maximum of a quantity over all tokens; a maximum has no interval."""
    return suite.state.maxima[name], NONE


def _quantile(name: str, share: float, example: str) -> Metric:
    percent = 100.0 * share
    return Metric(
        name=name,
        family=MAGNITUDE,
        label=f"{percent:g}% quantile of |log-ratio|",
        says=f"The |log_ratio| that {percent:g}% of the tokens do not exceed. Above 4 million "
        "tokens it is accurate to 0.05%.",
        formula=f"quantile {share:g} of |log_ratio| over tokens",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        example=RATIOS_OF_EXAMPLE + example,
        from_suite=lambda s: (
            s.ordered.quantile(share),
            quantile_interval(s.ordered, s.shares_below, share),
        ),
    )


LOG_RATIOS = (
    Metric(
        name="log_ratio_abs_mean",
        family=MAGNITUDE,
        label="mean |log-ratio|",
        says="The mean size of a token's log-ratio, whoever sampled the tokens.",
        formula="E|log_ratio| over tokens",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        elsewhere={
            "TRL": "sampling/sampling_logp_difference/mean",
            "SkyRL": "rollout_train_logprobs_abs_diff_mean",
            "slime": "train_rollout_logprob_abs_diff: mean over sequences of their means",
        },
        example=RATIOS_OF_EXAMPLE + "0.68",
        from_totals=lambda t: t.per_token("log_ratio_abs"),
        bound=0.0,
    ),
    Metric(
        name="log_ratio_abs_std",
        family=MAGNITUDE,
        label="standard deviation of |log-ratio|",
        says="How much the size of the log-ratio differs between tokens.",
        formula="sqrt(E[log_ratio^2] - E[|log_ratio|]^2)",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        example=RATIOS_OF_EXAMPLE + "0.5741",
        from_totals=log_ratio_abs_std,
        bound=0.0,
        beyond_sample=partial(spread_beyond, log_ratio_abs_std),
    ),
    Metric(
        name="log_ratio_std",
        family=MAGNITUDE,
        label="standard deviation of log-ratio",
        says="The spread of the log-ratio of tokens: near sqrt(2 KL) where the mismatch is small.",
        formula="sqrt(E[log_ratio^2] - E[log_ratio]^2)",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        example=RATIOS_OF_EXAMPLE + "0.889",
        from_totals=log_ratio_std,
        bound=0.0,
        beyond_sample=partial(spread_beyond, log_ratio_std),
    ),
    _quantile("log_ratio_abs_p50", 0.5, "0.5"),
    _quantile("log_ratio_abs_p90", 0.9, "1.38"),
    _quantile("log_ratio_abs_p99", 0.99, "1.488"),
    _quantile("log_ratio_abs_p99.9", 0.999, "1.499"),
    Metric(
        name="log_ratio_abs_max",
        family=MAGNITUDE,
        label="max |log-ratio|",
        says="The largest |log_ratio| of any token. An extreme has no interval, and grows with the "
        "number of tokens.",
        formula="max |log_ratio| over tokens",
        unit="nats",
        ideal=0.0,
        direction=SYMMETRIC,
        elsewhere={
            "TRL": "sampling/sampling_logp_difference/max",
            "SkyRL": "rollout_train_logprobs_abs_diff_max",
        },
        example=RATIOS_OF_EXAMPLE + "1.5",
        from_suite=lambda s: largest("log_ratio_abs", s),
        interval=NO_INTERVAL,
    ),
    Metric(
        name="exp_abs_log_ratio_mean",
        family=MAGNITUDE,
        label="mean exp|log-ratio|",
        says="The mean factor between both probabilities of a token, whichever is the larger: the "
        "multiplicative probability error of NeMo RL.",
        formula="E[exp|log_ratio|] over tokens",
        ideal=1.0,
        direction=SYMMETRIC,
        guide=Guide(
            warning=1.02, error=1.05, source="NeMo RL: above 1.05 investigate, 1.02 a slow drift"
        ),
        elsewhere={"NeMo RL": "token_mult_prob_error"},
        example=RATIOS_OF_EXAMPLE + "2.332",
        from_totals=lambda t: 1.0 + t.per_token("exp_abs_excess"),
        bound=1.0,
        giants="token",
    ),
    Metric(
        name="ratio_deviation_mean",
        family=MAGNITUDE,
        label="mean |ratio - 1|",
        says="The mean distance of a token's ratio from 1: the surrogate error rate of trust "
        "region masking, twice the total variation where the behavior policy sampled.",
        formula="E|ratio - 1| over tokens",
        ideal=0.0,
        presupposes=BEHAVIOR_SAMPLED,
        guide=Guide(
            warning=0.03, error=0.10, source="arXiv 2512.23075: thresholds from 0.03 to 0.10"
        ),
        source="Trust Region Masking, arXiv 2512.23075",
        example=RATIOS_OF_EXAMPLE + "0.9549",
        from_totals=lambda t: t.per_token("deviation"),
        bound=0.0,
        giants="token",
    ),
)
