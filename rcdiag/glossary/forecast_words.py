"""Numbers of the forecast of `rcdiag sweep`. Source: reference/theory.md F6, 4.1 and 4.2."""

from __future__ import annotations

from rcdiag.glossary.entry import LOG_RATIO, Entry, by_hand, said
from rcdiag.glossary.guides import range_of
from rcdiag.statistics.metrics import METRICS

_SEQ = "log lower <= sum log_ratio <= log upper"
_GEO = "log lower <= mean log_ratio <= log upper"
_TABLE = "kl_token 0.001, 1,000 tokens, one KL for all sequences"
_HELD_OUT = "by the law that was fitted on the shorter half of the sequences"
_HOW = "Phi((log upper + k T) / s) - Phi((log lower + k T) / s), s^2 = 2 k T, averaged over k"

WORDS: dict[str, Entry] = {
    "kl_token": said(
        what="KL per token that the forecast uses: that by variance, or the larger one where both "
        "estimates differ beyond chance.",
        formula="max(kl_token_by_mean, kl_token_by_variance) or kl_token_by_variance",
        direction="KL(behavior || target)",
        units="nats per token",
        healthy=f"as k3_kl: {range_of(0.0, METRICS['k3_kl'].guide)}",
        example=f"{_TABLE}: ess_seq 0.135",
        see=("k3_kl", "kl_token_by_mean", "kl_token_by_variance"),
    ),
    "kl_token_by_mean": said(
        what="KL per token as the mean says it; may be below 0 by noise.",
        formula="-sum log_ratio / sum of lengths",
        direction=LOG_RATIO,
        units="nats per token",
        example="sums of log_ratio -0.3 and -0.1 over 200 and 200 tokens: 0.001",
        see=("k1_kl", "kl_token_by_variance"),
    ),
    "kl_token_by_variance": said(
        what="KL per token as the spread of the sums says it, the surer estimate: tokens of the "
        "behavior policy have both alike.",
        formula="half the variance of sum log_ratio, per token",
        direction="the same for log_ratio and -log_ratio",
        units="nats per token",
        example="sums of 1,000 tokens with standard deviation 1: 0.0005",
        see=("kl_token_by_mean", "kappa"),
    ),
    "heterogeneity": said(
        what="How unequal sequences are in their KL per token: the standard deviation of its log.",
        formula="sd of ln k over sequences, k lognormal",
        units="none",
        healthy="ideal 0; the larger, the longer a part of the sequences stays useful, and the "
        "earlier another part is lost",
        example="0.7: two thirds of the sequences within a factor of 2 of the typical one",
        see=("kl_token",),
    ),
    "accepted_seq": said(
        what="Share of the sequences of a length that a window on the product of ratios is "
        "expected to keep.",
        formula=f"P({_SEQ}) = {_HOW}",
        direction=LOG_RATIO,
        units="share",
        healthy="falls with the length, whatever the window",
        example=f"{_TABLE}, window 0.5 to 2: 0.299",
        see=("seq_bounds", "seq_sum_k1", "kept_sequence_share"),
    ),
    "accepted_geo": said(
        what="The same for a window on the geometric mean of ratios: a switch on the mean KL, that "
        "long sequences pass all or not at all.",
        formula=f"P({_GEO}); as accepted_seq with T times the logs of the bounds",
        direction=LOG_RATIO,
        units="share",
        healthy="1/2 where the KL per token is at the edge of the window",
        example=f"{_TABLE}, window 0.999 to 1.001: 0.421",
        see=("geo_bounds", "seq_mean_k1"),
    ),
    "seq_bounds": said(
        what="The window on the product of ratios that the forecast is made for.",
        formula=_SEQ,
        units="ratio",
        example="0.5 to 2",
        see=("accepted_seq",),
    ),
    "geo_bounds": said(
        what="The window on the geometric mean of ratios that the forecast is made for.",
        formula=_GEO,
        units="ratio",
        example="0.999 to 1.001",
        see=("accepted_geo",),
    ),
    "expected_seq": said(
        what=f"Acceptance by the window of sequences in a bin of lengths, {_HELD_OUT}.",
        formula="mean of accepted_seq over the lengths of the bin",
        units="share",
        healthy="within the interval of seen_seq",
        example="rcdiag sweep rollouts.parquet --json | jq '.forecast.held_out[].expected_seq'",
        see=("seen_seq", "holds"),
    ),
    "seen_seq": said(
        what="The share of the sequences of a held-out bin that the window of sequences keeps.",
        formula=f"mean of 1({_SEQ})",
        direction=LOG_RATIO,
        units="share",
        healthy="expected_seq within its interval",
        example="rcdiag sweep rollouts.parquet --json | jq '.forecast.held_out[].seen_seq'",
        see=("expected_seq", "holds"),
    ),
    "expected_geo": said(
        what=f"Acceptance by the geometric window in a bin of lengths, {_HELD_OUT}.",
        formula="mean of accepted_geo over the lengths of the bin",
        units="share",
        healthy="within the interval of seen_geo",
        example="rcdiag sweep rollouts.parquet --json | jq '.forecast.held_out[].expected_geo'",
        see=("seen_geo", "holds"),
    ),
    "seen_geo": said(
        what="The share of the sequences of a held-out bin that the geometric window keeps.",
        formula=f"mean of 1({_GEO})",
        direction=LOG_RATIO,
        units="share",
        healthy="expected_geo within its interval",
        example="rcdiag sweep rollouts.parquet --json | jq '.forecast.held_out[].seen_geo'",
        see=("expected_geo", "holds"),
    ),
    "expected_std": said(
        what=f"Standard deviation of sum log_ratio in a bin of lengths, {_HELD_OUT}.",
        formula="sqrt(2 k T + (k T)^2 (e^(heterogeneity^2) - 1))",
        units="nats",
        healthy="within the interval of seen_std",
        example="kl_token 0.0005, 1,000 tokens, heterogeneity 0: 1",
        see=("seen_std", "heterogeneity"),
    ),
    "seen_std": said(
        what="Standard deviation of sum log_ratio over the sequences of a held-out bin.",
        formula="sd of sum log_ratio about its expected mean",
        units="nats",
        healthy="expected_std within its interval",
        example="rcdiag sweep rollouts.parquet --json | jq '.forecast.held_out[].seen_std'",
        see=("expected_std", "holds"),
    ),
    "holds": said(
        what="Whether what was seen in the held-out bins of longer sequences lies where the law of "
        "the shorter ones expects it; null where there are too few to tell.",
        healthy="true; where false, look at the held-out bins before you believe the forecast",
        example="rcdiag sweep rollouts.parquet --json | jq .forecast.holds",
        see=("expected_seq", "seen_seq"),
    ),
}

KIND = by_hand("number of a forecast", "Numbers of the forecast of `rcdiag sweep`", WORDS)
