"""Were the tokens drawn from the recorded behavior policy? If not, every weight is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, stdtrit

from rcdiag.statistics.intervals import FEW_CLUSTERS, NONE, Interval, standard_error
from rcdiag.statistics.metrics.metric import PROPOSAL, Averaged, Guide, Metric, Whole
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def mean_ratio(t: Totals, level: str) -> Array:
    """E[ratio] over tokens or sequences, 1 if the tokens were drawn from the behavior policy."""
    return 1.0 + (t.per_sequence("seq_excess") if level == "seq" else t.per_token("excess"))


def mean_ratio_z(suite: Suite, level: str) -> tuple[float, Interval]:
    """(E[ratio] - 1) / its jackknife standard error over clusters.

    Under the law that sampled, E[ratio] = 1 exactly at every prefix, so |z| beyond 4 is no chance.
    """
    if suite.clusters < 2:
        return np.nan, NONE
    away = mean_ratio(suite.point, level)[0] - 1.0
    return float(away / standard_error(mean_ratio(suite.left_out, level))), NONE


def kappa(t: Totals) -> Array:
    """Calibration index -2 E[log_ratio] / E[log_ratio^2].

    With V the variance of each side's error about the law that sampled, to second order
    (V_target - V_behavior) / (V_target + V_behavior): 1 where the behavior log-probs are exact,
    0 where both sides are equally wrong, -1 where the tokens were drawn from the target.
    """
    return -t.sums["log_ratio"] / t.sums["k2"]


def kappa_error(suite: Suite) -> tuple[float, Interval]:
    """Jackknife standard error of kappa over clusters."""
    if suite.clusters < 2:
        return np.nan, NONE
    return float(standard_error(kappa(suite.left_out))), NONE


def variance_ratio(t: Totals) -> Array:
    """Var(sum log_ratio of a sequence) / sum of its tokens' variances, about the common mean.

    1 where log-ratios are uncorrelated along the sequence, as they are when the tokens come from
    the behavior policy; far above 1 where sequences carry an offset the sampler did not know.
    """
    mean = t.per_token("log_ratio")
    of_sequences = (
        2.0 * t.sums["seq_k2"]
        - 2.0 * mean * t.sums["log_ratio_by_length"]
        + mean**2 * t.sums["length_squared"]
    )
    squares = 2.0 * t.sums["k2"]
    of_tokens = squares - mean**2 * t.tokens
    # What is left of the variance of equal log-ratios is rounding of either sign.
    return np.where(of_tokens > 1e-12 * squares, of_sequences / of_tokens, np.nan)


def _as_rare_as(normal: float) -> Callable[[Suite], float]:
    """The t statistic of so many clusters that is as rare as `normal` standard deviations."""
    return lambda suite: -float(stdtrit(max(suite.clusters - 1, 1), ndtr(-normal)))


_Z = Guide(
    _as_rare_as(2.0),
    _as_rare_as(4.0),
    f"{PROPOSAL}: from 2 and 4 standard errors on, more with few clusters",
    around=0.0,
)

VALIDITY: dict[str, Metric] = {
    "ratio_mean": Averaged(
        label="mean ratio of tokens",
        ideal=1.0,
        about="E[ratio] over tokens; 1 if the tokens were drawn from the recorded behavior policy",
        formula=lambda t: mean_ratio(t, "token"),
    ),
    "ratio_mean_z": Whole(
        label="test of mean ratio of tokens = 1",
        unit="std errors",
        ideal=0.0,
        about="(E[ratio] - 1) / its standard error over clusters (jackknife)",
        guide=_Z,
        headline=True,
        of_suite=lambda s: mean_ratio_z(s, "token"),
    ),
    "ratio_mean_seq": Averaged(
        label="mean ratio of sequences",
        ideal=1.0,
        about="E[prod ratio] over sequences; 1 if they were drawn from the recorded behavior "
        "policy, but rare huge ratios are easily missed",
        formula=lambda t: mean_ratio(t, "seq"),
    ),
    "ratio_mean_seq_z": Whole(
        label="test of mean ratio of sequences = 1",
        unit="std errors",
        ideal=0.0,
        about="(E[prod ratio] - 1) / its standard error over clusters (jackknife)",
        of_suite=lambda s: mean_ratio_z(s, "seq"),
    ),
    "kappa": Averaged(
        label="calibration index",
        ideal=1.0,
        about="-2 E[log_ratio] / E[log_ratio^2]: 1 behavior log-probs are exact, 0 both sides "
        "equally wrong, -1 tokens were drawn from the target; level by the nearest value in its "
        "interval",
        guide=Guide(
            0.3,
            0.7,
            f"{PROPOSAL}: distance from 1, the interval counted; judged from {FEW_CLUSTERS} "
            "clusters on",
            around=1.0,
            by_interval=True,
            applies=lambda s: s.clusters >= FEW_CLUSTERS,
        ),
        headline=True,
        formula=kappa,
    ),
    "kappa_se": Whole(
        label="standard error of the calibration index",
        ideal=None,
        about="jackknife over clusters; about 2 / (sqrt(tokens) rms log_ratio)",
        of_suite=kappa_error,
    ),
    "variance_ratio": Averaged(
        label="variance ratio of sequences",
        ideal=1.0,
        about="Var(sum log_ratio) / sum Var(log_ratio); 1 for noise and drift alike, far above 1 "
        "where whole sequences are offset",
        formula=variance_ratio,
    ),
}
