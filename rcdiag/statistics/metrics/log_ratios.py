"""How far apart both policies are: the sizes of single log-ratios."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics.intervals import NONE, Interval
from rcdiag.statistics.metrics.metric import Averaged, Guide, Metric, Whole
from rcdiag.statistics.quantiles import quantile_interval
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def log_ratio_std(t: Totals) -> Array:
    """Standard deviation of log_ratio over tokens, nats."""
    return np.sqrt(np.maximum(2.0 * t.per_token("k2") - np.square(t.per_token("log_ratio")), 0.0))


def log_ratio_abs_std(t: Totals) -> Array:
    """Standard deviation of |log_ratio| over tokens, nats."""
    mean = t.per_token("log_ratio_abs")
    return np.sqrt(np.maximum(2.0 * t.per_token("k2") - np.square(mean), 0.0))


def largest(name: str, suite: Suite) -> tuple[float, Interval]:
    return float(suite.state.table.maxima[name].max()), NONE


def _quantile(share: float) -> Metric:
    return Whole(
        label=f"{100 * share:g}% quantile of |log-ratio|",
        unit="nats",
        ideal=0.0,
        about=f"|log_ratio| that {100 * share:g}% of the tokens do not exceed; to 0.05% of its "
        "value above 4 million tokens",
        of_suite=lambda s: (
            s.ordered.quantile(share),
            quantile_interval(s.ordered, s.state.magnitudes.clusters, share),
        ),
    )


LOG_RATIOS: dict[str, Metric] = {
    "log_ratio_abs_mean": Averaged(
        label="mean |log-ratio|",
        unit="nats",
        ideal=0.0,
        about="E|log_ratio| over tokens",
        formula=lambda t: t.per_token("log_ratio_abs"),
    ),
    "log_ratio_abs_std": Averaged(
        label="standard deviation of |log-ratio|",
        unit="nats",
        ideal=0.0,
        about="over tokens",
        formula=log_ratio_abs_std,
    ),
    "log_ratio_std": Averaged(
        label="standard deviation of log-ratio",
        unit="nats",
        ideal=0.0,
        about="over tokens; near sqrt(2 KL) where the mismatch is small",
        formula=log_ratio_std,
    ),
    "log_ratio_abs_p50": _quantile(0.5),
    "log_ratio_abs_p90": _quantile(0.9),
    "log_ratio_abs_p99": _quantile(0.99),
    "log_ratio_abs_p99.9": _quantile(0.999),
    "log_ratio_abs_max": Whole(
        label="max |log-ratio|",
        unit="nats",
        ideal=0.0,
        about="largest |log_ratio| of any token; an extreme has no interval",
        headline=True,
        of_suite=lambda s: largest("log_ratio_abs", s),
    ),
    "exp_abs_log_ratio_mean": Averaged(
        label="mean exp|log-ratio|",
        ideal=1.0,
        about="E[exp|log_ratio|] over tokens, NeMo RL's multiplicative probability error",
        guide=Guide(1.02, 1.05, "NeMo RL: above 1.05 investigate, 1.02 a slow drift"),
        formula=lambda t: 1.0 + t.per_token("exp_abs_excess"),
    ),
    "ratio_deviation_mean": Averaged(
        label="mean |ratio - 1|",
        ideal=0.0,
        about="E|ratio - 1| over tokens, the surrogate error rate of trust-region masking",
        guide=Guide(0.03, 0.10, "2512.23075: thresholds from 0.03 to 0.10"),
        formula=lambda t: t.per_token("deviation"),
    ),
}
