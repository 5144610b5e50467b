"""Metrics that test whether the behavior policy sampled the tokens, as all weights presuppose."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.statistics.intervals import (
    FEW_CLUSTERS,
    NONE,
    Interval,
    standard_error,
    student_quantile,
)
from rcdiag.statistics.metrics.metric import (
    NO_INTERVAL,
    RATIOS_OF_EXAMPLE,
    SYMMETRIC,
    VALIDITY,
    Metric,
)
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.second_moment import squares_of_sums
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def mean_ratio(t: Totals, level: str) -> Array:
    """Return E[ratio] over tokens or sequences: 1 if the behavior policy sampled the tokens."""
    return 1.0 + (t.per_sequence("seq_excess") if level == "seq" else t.per_token("excess"))


def mean_ratio_z(suite: Suite, level: str) -> tuple[float, Interval]:
    """Return (E[ratio] - 1) / its jackknife standard error over clusters.

    Under the distribution that sampled, E[ratio] = 1 exactly at every prefix, so that |z| above 4
    is not chance.
    """
    if suite.clusters < 2:
        return np.nan, NONE
    away = mean_ratio(suite.point, level)[0] - 1.0
    return float(away / standard_error(mean_ratio(suite.left_out, level))), NONE


def kappa(t: Totals) -> Array:
    """Return the calibration index -2 E[log_ratio] / E[log_ratio^2].

    With V the variance of each policy's error relative to the distribution that sampled, it is
    (V_target - V_behavior) / (V_target + V_behavior) to second order: 1 if the behavior log-probs
    are exact, 0 if both policies are equally wrong, -1 if the tokens were sampled from the target.
    """
    return -t.sums["log_ratio"] / t.sums["k2"]


def kappa_error(suite: Suite) -> tuple[float, Interval]:
    """Return the jackknife standard error of kappa over clusters."""
    if suite.clusters < 2:
        return np.nan, NONE
    return float(standard_error(kappa(suite.left_out))), NONE


def variance_ratio(t: Totals) -> Array:
    """Return sum (S - m T)^2 / sum (log_ratio - m)^2, over sequences and over tokens.

    S is the sum of log_ratio over a sequence of T tokens, m the mean log_ratio of all tokens. 1 if
    log-ratios are uncorrelated along the sequence, as they are when the behavior policy sampled the
    tokens; far above 1 if whole sequences have an offset that the sampler did not know.
    """
    squares = 2.0 * t.sums["k2"]
    of_tokens = squares - t.per_token("log_ratio") ** 2 * t.tokens
    # If all log-ratios are equal, the computed variance is rounding noise of either sign.
    return np.where(of_tokens > 1e-12 * squares, squares_of_sums(t) / of_tokens, np.nan)


# With fewer clusters Student's t is so wide that a z says little; rcdiag's proposal.
FEWEST_FOR_Z = 8

Z_GUIDE = Guide(
    warning=2.0,
    error=4.0,
    source=f"{PROPOSAL}: in standard errors, or the t quantiles of the same probability; needs "
    f"{FEWEST_FOR_Z} prompt groups",
    around=0.0,
)


def _z_guide(suite: Suite) -> Guide:
    """Return the t statistics over the clusters as rare as 2 and 4 standard deviations."""
    from scipy.special import ndtr

    freedom = max(suite.clusters - 1, 1)
    warning, error = (float(student_quantile(freedom, ndtr(-normal))) for normal in (2.0, 4.0))
    return replace(Z_GUIDE, warning=warning, error=error)


KAPPA_GUIDE = Guide(
    warning=0.3,
    error=0.7,
    source=f"{PROPOSAL}: distance from 1 of the interval's end that is nearest to 1; needs "
    f"{FEW_CLUSTERS} prompt groups",
    around=1.0,
    by_interval=True,
)

_SAMPLED = "if they were drawn from the recorded behavior policy"

VALIDITIES = (
    Metric(
        name="ratio_mean",
        family=VALIDITY,
        label="mean ratio of tokens",
        says=f"The mean ratio of the tokens, 1 {_SAMPLED}.",
        formula="E[ratio] over tokens",
        ideal=1.0,
        elsewhere={
            "verl": "rollout_corr/rollout_is_mean (mismatch/... in 0.6.0): of raw weights until "
            "0.7.1, of applied weights from 0.8.0 on",
            "NeMo RL": "sampling_importance_ratio",
            "SkyRL": "is_ratio_mean",
        },
        example=RATIOS_OF_EXAMPLE + "1.48",
        see=("ratio_mean_z", "rollout_corr/rollout_is_mean"),
        from_totals=lambda t: mean_ratio(t, "token"),
        bound=0.0,
        giants="token",
    ),
    Metric(
        name="ratio_mean_z",
        family=VALIDITY,
        label="test of mean ratio of tokens = 1",
        says="How many standard errors the mean ratio of the tokens is from 1, its expectation if "
        "they were sampled from the recorded behavior policy: beyond 4 it is not chance.",
        formula="(E[ratio] - 1) / its standard error over clusters (jackknife)",
        unit="std errors",
        ideal=0.0,
        guide=Z_GUIDE,
        guide_for=_z_guide,
        fewest_clusters=FEWEST_FOR_Z,
        example=RATIOS_OF_EXAMPLE + "0.5613",
        see=("ratio_mean",),
        headline=True,
        from_suite=lambda s: mean_ratio_z(s, "token"),
        interval=NO_INTERVAL,
    ),
    Metric(
        name="ratio_mean_seq",
        family=VALIDITY,
        label="mean ratio of sequences",
        says=f"The mean product of ratios of the sequences, 1 {_SAMPLED}; but rare huge ratios are "
        "easily missed.",
        formula="E[prod ratio] over sequences",
        ideal=1.0,
        example=RATIOS_OF_EXAMPLE + "2.332",
        see=("ratio_mean_seq_z",),
        from_totals=lambda t: mean_ratio(t, "seq"),
        bound=0.0,
        giants="seq",
    ),
    Metric(
        name="ratio_mean_seq_z",
        family=VALIDITY,
        label="test of mean ratio of sequences = 1",
        says="How many standard errors the mean product of ratios of the sequences is from 1. It "
        "is not judged: where a sample misses rare huge ratios it is below 0 without any fault.",
        formula="(E[prod ratio] - 1) / its standard error over clusters (jackknife)",
        unit="std errors",
        ideal=0.0,
        example=RATIOS_OF_EXAMPLE + "0.6198",
        see=("ratio_mean_seq",),
        from_suite=lambda s: mean_ratio_z(s, "seq"),
        interval=NO_INTERVAL,
    ),
    Metric(
        name="kappa",
        family=VALIDITY,
        label="calibration index",
        says="Which side's log-probs are off the distribution that sampled: 1 where the behavior "
        "log-probs are exact, 0 where both sides are equally wrong, -1 where the tokens were drawn "
        "from the target. It is judged by the nearest value to 1 in its interval.",
        formula="-2 E[log_ratio] / E[log_ratio^2]",
        ideal=1.0,
        direction="changes its sign with the log-probs of both policies exchanged",
        guide=KAPPA_GUIDE,
        fewest_clusters=FEW_CLUSTERS,
        source=PROPOSAL,
        example=RATIOS_OF_EXAMPLE + "0.101",
        see=("kappa_se",),
        headline=True,
        from_totals=kappa,
    ),
    Metric(
        name="kappa_se",
        family=VALIDITY,
        label="standard error of the calibration index",
        says="The standard error of kappa; about 2 / (sqrt(tokens) rms log_ratio).",
        formula="jackknife standard error of kappa over clusters",
        ideal=None,
        direction=SYMMETRIC,
        example=RATIOS_OF_EXAMPLE + "1.667",
        see=("kappa",),
        from_suite=kappa_error,
        interval=NO_INTERVAL,
    ),
    Metric(
        name="variance_ratio",
        family=VALIDITY,
        label="variance ratio of sequences",
        says="Whether the log-ratios of a sequence are correlated: 1 for noise and for a common "
        "drift, far above 1 where whole sequences are shifted, as by another context. "
        "A sequence of T tokens is centred by T times the mean log-ratio of all tokens.",
        formula="sum (sum log_ratio - m T)^2 / sum (log_ratio - m)^2, m = E[log_ratio]",
        ideal=1.0,
        direction=SYMMETRIC,
        source=PROPOSAL,
        example=RATIOS_OF_EXAMPLE + "1.328",
        from_totals=variance_ratio,
        bound=0.0,
    ),
)
