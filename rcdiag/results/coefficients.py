"""Which tokens the gradient of a loss comes from, and what the loss is divided by."""

from __future__ import annotations

from typing import Annotated

from rcdiag.results.base import Histogram
from rcdiag.results.doc import Doc, Number
from rcdiag.results.parts import Part

COEFFICIENT = "c = d loss / d current log-prob of a token"
COEFFICIENT_SIGN = (
    "c below 0 raises the token's log-prob in a step down the loss, above 0 lowers it"
)
PER_NAT = "loss per nat"
_PULLED = "coefficients [-0.2, -0.2, -0.1], [0.2, 0.2], advantages 1 and -1: "


class Coefficients(Part, frozen=True, kw_only=True):
    """Coefficients are the derivatives of the loss by each token's current log-prob."""

    norm: Annotated[
        Number,
        Doc(
            "Size of the coefficients as one vector over all tokens.",
            unit=PER_NAT,
            formula="sqrt(sum c^2); " + COEFFICIENT,
            healthy="no bound; compare presets with each other",
            example=_PULLED + "0.4123",
            see=("coefficients", "grad_norm"),
            heading="|c|",
        ),
    ]
    sum: Annotated[
        Number,
        Doc(
            "Sum of the coefficients: whether the loss pulls log-probs up or down overall.",
            unit=PER_NAT,
            formula="sum c; " + COEFFICIENT,
            direction=COEFFICIENT_SIGN,
            healthy="no bound; near 0 where advantages are centred and nothing is clipped or "
            "rejected",
            example=_PULLED + "-0.1",
            see=("coefficients",),
        ),
    ]
    abs_sum: Annotated[
        Number,
        Doc(
            "Sum of the absolute coefficients.",
            unit=PER_NAT,
            formula="sum |c|; " + COEFFICIENT,
            healthy="no bound; compare presets with each other",
            example=_PULLED + "0.9",
            see=("coefficients", "shares"),
        ),
    ]
    nonzero: Annotated[
        int,
        Doc(
            "Number of tokens with a non-zero coefficient: they are not rejected, not clipped, and "
            "have neither advantage 0 nor weight 0.",
            unit="tokens",
            formula="count of c != 0; " + COEFFICIENT,
            healthy="no bound; of all unmasked tokens",
            example=_PULLED + "5",
            see=("coefficients", "kept_tokens"),
        ),
    ]
    largest: Annotated[
        Number,
        Doc(
            "The largest absolute coefficient.",
            unit=PER_NAT,
            formula="max |c|; " + COEFFICIENT,
            healthy="no bound; see top_tokens",
            example=_PULLED + "0.2",
            see=("coefficients", "top_tokens"),
        ),
    ]


class Shares(Part, frozen=True, kw_only=True):
    """Shares say which tokens the gradient comes from: shares of the sum of |coefficient|."""

    by_length: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| of each quarter of the sequences by length, the shortest first.",
            unit="share",
            formula="sum |c| of the quarter / sum |c|; " + COEFFICIENT,
            healthy="no bound; compared with tokens_by_length it shows what the aggregation "
            "prefers",
            example=_PULLED + "0.4444, 0, 0, 0.5556",
            see=("tokens_by_length", "token-mean", "seq-mean-token-mean"),
            entries=4,
        ),
    ]
    tokens_by_length: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| that each quarter of the sequences by length would have if every "
            "token had the same |c|.",
            unit="share",
            formula="tokens of the quarter / all tokens",
            healthy="no bound; compare by_length with it",
            example=_PULLED + "0.4, 0, 0, 0.6",
            see=("by_length",),
            entries=4,
        ),
    ]
    positive_advantage: Annotated[
        Number,
        Doc(
            "Share of sum |c| of tokens with a positive advantage.",
            unit="share",
            formula="sum |c| where A > 0 / sum |c|; " + COEFFICIENT,
            healthy="no bound; the clip drops tokens with A > 0 above its range, with A < 0 below "
            "it",
            example=_PULLED + "0.5556",
            see=("negative_advantage", "actor/pg_clipfrac"),
        ),
    ]
    negative_advantage: Annotated[
        Number,
        Doc(
            "Share of sum |c| of tokens with a negative advantage.",
            unit="share",
            formula="sum |c| where A < 0 / sum |c|; " + COEFFICIENT,
            healthy="no bound; see positive_advantage",
            example=_PULLED + "0.4444",
            see=("positive_advantage", "actor/pg_clipfrac_lower"),
        ),
    ]
    top_tokens: Annotated[
        Number,
        Doc(
            "Share of sum |c| of the 1% of tokens with the largest |c|, at least one token.",
            unit="share",
            formula="sum of the largest 1% of |c| / sum |c|; " + COEFFICIENT,
            healthy="0.01 if all tokens have the same |c|; no bound",
            example=_PULLED + "0.2222",
            see=("largest", "top_sequences"),
        ),
    ]
    top_sequences: Annotated[
        Number,
        Doc(
            "Share of sum |c| of the 1% of sequences with the largest sums, at least one sequence.",
            unit="share",
            formula="sum |c| of the largest 1% of sequences / sum |c|; " + COEFFICIENT,
            healthy="near top_sequences_uncorrected; for bounds see health.top_sequences",
            example=_PULLED + "0.5556",
            see=("health.top_sequences", "sequences"),
            heading="top 1%",
        ),
    ]
    sequences: Annotated[
        list[Number],
        Doc(
            "Share of sum |c| of each sequence, the largest first, at most 100 sequences.",
            unit="share",
            formula="sum |c| of the sequence / sum |c|; " + COEFFICIENT,
            example=_PULLED + "0.5556, 0.4444",
            see=("top_sequences",),
        ),
    ]
    histogram: Annotated[
        Histogram,
        Doc(
            "Histogram of log10 |c| over tokens with a non-zero coefficient: `edges` and `counts`.",
            unit="tokens",
            formula="counts of log10 |c|; " + COEFFICIENT,
            see=("coefficients", "edges", "counts"),
        ),
    ]
    top_sequences_uncorrected: Annotated[
        float | None,
        Doc(
            "What top_sequences would be if every ratio and weight were 1 and nothing were "
            "rejected: the part due to lengths, advantages and the aggregation alone. Null if "
            "every advantage is 0, and in older documents.",
            unit="share",
            formula="sum |c| of the largest 1% of sequences / sum |c|, c of the loss at ratio 1",
            healthy="no bound; top_sequences is compared with it",
            example=_PULLED + "0.6",
            see=("top_sequences", "health.top_sequences"),
            sparse=True,
        ),
    ] = None


class Denominator(Part, frozen=True, kw_only=True):
    """A denominator says what the loss is divided by, and what the alternatives would be."""

    basis: Annotated[
        str,
        Doc(
            "Which denominator of the loss was used: kept, all or constant.",
            see=("divisor", "denominator.kept", "all", "constant"),
            one_of=("kept", "all", "constant"),
        ),
    ]
    counted: Annotated[
        str,
        Doc(
            "What the aggregation takes the mean over: tokens, sequences, or nothing for a sum.",
            see=("divisor", "aggregation"),
        ),
    ]
    divisor: Annotated[
        Number,
        Doc(
            "The number by which the sum of losses is divided in this replay, before any constant "
            "length: all coefficients scale with 1 / divisor.",
            unit="tokens or sequences, as `counted` says",
            formula="kept_count, full_count or the constant, as `basis` says",
            healthy="no bound; above kept_count rejection acts like a lower learning rate",
            example="5 tokens of which 3 are kept: 3, or 5 with --denominator all",
            see=("denominator", "basis", "counted", "rejected-in-denominator"),
        ),
    ]
    kept_count: Annotated[
        Number,
        Doc(
            "The divisor with the denominator kept: the number of tokens, or sequences, that stay "
            "in the loss.",
            unit="tokens or sequences, as `counted` says",
            see=("denominator",),
        ),
    ]
    full_count: Annotated[
        Number,
        Doc(
            "The divisor with the denominator all: the number of all tokens, or sequences, "
            "including rejected ones.",
            unit="tokens or sequences, as `counted` says",
            see=("denominator",),
        ),
    ]
