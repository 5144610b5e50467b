"""Acceptance and effective sample size to expect for longer responses, tested on the table."""

from __future__ import annotations

from typing import Annotated

from rcdiag.results.base import LOG_RATIO, MetricValue
from rcdiag.results.doc import Doc, Number
from rcdiag.results.parts import Part

_TABLE = "kl_token 0.001, 1,000 tokens, one KL for all sequences"
_HELD_OUT = "by the fit to the shorter half of the sequences."
_SEQ = "log lower <= sum log_ratio <= log upper"
_GEO = "log lower <= mean log_ratio <= log upper"


class ForecastPoint(Part, frozen=True, kw_only=True):
    """A forecast point gives the acceptance and ESS expected at one response length."""

    response_length: Annotated[
        int, Doc("Response length of a point of the forecast.", unit="tokens")
    ]
    ess_seq: Annotated[
        Number,
        Doc(
            "Expected effective sample size of sequences of a length, by their raw ratios.",
            unit="fraction",
            formula="e^(-2 k T) averaged over k, T the length",
            healthy="ideal 1",
            example=_TABLE + ": 0.135",
            see=("kl_token", "heterogeneity"),
        ),
    ]
    accepted_seq: Annotated[
        Number,
        Doc(
            "Expected share of the sequences of a length that a window on the product of ratios "
            "keeps.",
            unit="share",
            formula="P(" + _SEQ + ") = Phi((log upper + k T) / s) - Phi((log lower + k T) / s), "
            "s^2 = 2 k T, averaged over k",
            direction=LOG_RATIO,
            healthy="falls with the length, whatever the window",
            example=_TABLE + ", window 0.5 to 2: 0.299",
            see=("seq_bounds", "seq_sum_k1", "kept_sequence_share"),
        ),
    ]
    accepted_geo: Annotated[
        Number,
        Doc(
            "Expected share of the sequences of a length that a window on the geometric mean of "
            "ratios keeps: a threshold on the mean KL, so that of long sequences all or none pass.",
            unit="share",
            formula="P(" + _GEO + "); as accepted_seq with T times the logs of the bounds",
            direction=LOG_RATIO,
            healthy="1/2 where the KL per token is at the edge of the window",
            example=_TABLE + ", window 0.999 to 1.001: 0.421",
            see=("geo_bounds", "seq_mean_k1"),
        ),
    ]


class HeldOutBin(Part, frozen=True, kw_only=True):
    """A held-out bin compares expected and observed numbers at lengths that were not fitted."""

    label: Annotated[str, Doc("Range of lengths of a held-out bin.")]
    num_sequences: Annotated[
        int, Doc("Number of sequences of a held-out bin of lengths.", unit="sequences")
    ]
    mean_length: Annotated[
        Number, Doc("Mean length of the sequences of a held-out bin.", unit="tokens")
    ]
    expected_geo: Annotated[
        Number,
        Doc(
            "Acceptance by the geometric window in a bin of lengths, " + _HELD_OUT,
            unit="share",
            formula="mean of accepted_geo over the lengths of the bin",
            healthy="within the interval of seen_geo",
            see=("seen_geo", "holds"),
        ),
    ]
    seen_geo: Annotated[
        MetricValue,
        Doc(
            "Share of the sequences of a held-out bin that the geometric window keeps.",
            unit="share",
            formula="mean of 1(" + _GEO + ")",
            direction=LOG_RATIO,
            healthy="expected_geo within its interval",
            see=("expected_geo", "holds"),
        ),
    ]
    expected_seq: Annotated[
        Number,
        Doc(
            "Acceptance by the sequence window in a bin of lengths, " + _HELD_OUT,
            unit="share",
            formula="mean of accepted_seq over the lengths of the bin",
            healthy="within the interval of seen_seq",
            see=("seen_seq", "holds"),
        ),
    ]
    seen_seq: Annotated[
        MetricValue,
        Doc(
            "Share of the sequences of a held-out bin that the sequence window keeps.",
            unit="share",
            formula="mean of 1(" + _SEQ + ")",
            direction=LOG_RATIO,
            healthy="expected_seq within its interval",
            see=("expected_seq", "holds"),
        ),
    ]
    expected_std: Annotated[
        Number,
        Doc(
            "Standard deviation of sum log_ratio in a bin of lengths, " + _HELD_OUT,
            unit="nats",
            formula="sqrt(2 k T + (k T)^2 (e^(heterogeneity^2) - 1))",
            healthy="within the interval of seen_std",
            example="kl_token 0.0005, 1,000 tokens, heterogeneity 0: 1",
            see=("seen_std", "heterogeneity"),
        ),
    ]
    seen_std: Annotated[
        MetricValue,
        Doc(
            "Standard deviation of sum log_ratio over the sequences of a held-out bin.",
            unit="nats",
            formula="sd of sum log_ratio about its expected mean",
            healthy="expected_std within its interval",
            see=("expected_std", "holds"),
        ),
    ]


class Forecast(Part, frozen=True, kw_only=True):
    """A forecast extrapolates to longer responses from the KL per token.

    Over tokens sampled by the behavior policy, sum log_ratio + k T is a martingale, so that over T
    tokens of KL k sum log_ratio is nearly normal with mean -k T and variance 2 k T (martingale
    central limit theorem); k is lognormal over sequences.
    """

    kl_token: Annotated[
        Number,
        Doc(
            "KL per token that the forecast uses: the estimate by variance, which has less error, "
            "or the larger one where both estimates differ beyond chance.",
            unit="nats per token",
            formula="max(kl_token_by_mean, kl_token_by_variance) or kl_token_by_variance",
            direction="KL(behavior || target)",
            healthy="as k3_kl: ideal 0",
            example=_TABLE + ": ess_seq 0.135",
            see=("k3_kl", "kl_token_by_mean", "kl_token_by_variance"),
        ),
    ]
    kl_token_by_mean: Annotated[
        Number,
        Doc(
            "KL per token estimated from the mean of the log-ratio; may be below 0 by noise.",
            unit="nats per token",
            formula="-sum log_ratio / sum of lengths",
            direction=LOG_RATIO,
            example="sums of log_ratio -0.3 and -0.1 over 200 and 200 tokens: 0.001",
            see=("k1_kl", "kl_token_by_variance"),
        ),
    ]
    kl_token_by_variance: Annotated[
        Number,
        Doc(
            "KL per token estimated from the spread of the sums, which has less error: for tokens "
            "that the behavior policy sampled both estimates agree.",
            unit="nats per token",
            formula="half the variance of sum log_ratio, per token",
            direction="the same for log_ratio and -log_ratio",
            example="sums of 1,000 tokens with standard deviation 1: 0.0005",
            see=("kl_token_by_mean", "kappa"),
        ),
    ]
    heterogeneity: Annotated[
        Number,
        Doc(
            "How unequal sequences are in their KL per token: the standard deviation of its log.",
            unit="none",
            formula="sd of ln k over sequences, k lognormal",
            healthy="ideal 0; the larger, the longer some sequences stay useful, and the earlier "
            "others are lost",
            example="0.7: two thirds of the sequences within a factor of 2 of the typical one",
            see=("kl_token",),
        ),
    ]
    seq_bounds: Annotated[
        list[Number],
        Doc(
            "The window on the product of ratios that the forecast is made for.",
            unit="ratio",
            formula=_SEQ,
            example="0.5 to 2",
            see=("accepted_seq",),
            entries=2,
        ),
    ]
    geo_bounds: Annotated[
        list[Number],
        Doc(
            "The window on the geometric mean of ratios that the forecast is made for.",
            unit="ratio",
            formula=_GEO,
            example="0.999 to 1.001",
            see=("accepted_geo",),
            entries=2,
        ),
    ]
    points: Annotated[
        list[ForecastPoint],
        Doc(
            "The expected numbers at a few response lengths, up to the longest response where "
            "`holds` is null.",
            see=("accepted_seq", "accepted_geo"),
        ),
    ]
    held_out: Annotated[
        list[HeldOutBin],
        Doc(
            "Bins of the longer half of the sequences, with the numbers that the fit to the "
            "shorter half predicts for them.",
            see=("holds",),
        ),
    ]
    holds: Annotated[
        bool | None,
        Doc(
            "Whether the observed numbers of the held-out bins of longer sequences agree with the "
            "fit to the shorter ones; null where there are too few to tell.",
            healthy="true; where false the forecast fails on this table, and the page does not "
            "draw it",
            see=("expected_seq", "seen_seq"),
        ),
    ]
    about: Annotated[str, Doc("How the forecast is made and how far it can be trusted.")]
