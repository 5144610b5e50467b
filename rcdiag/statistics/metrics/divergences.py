"""Metrics of mismatch: divergences between the policies, by token and by sequence."""

from __future__ import annotations

from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.statistics.metrics.metric import (
    BEHAVIOR_SAMPLED,
    MAGNITUDE,
    RATIOS_OF_EXAMPLE,
    SEQUENCES_SAMPLED,
    SYMMETRIC,
    Metric,
)
from rcdiag.statistics.second_moment import largest_mean_square

FORWARD = "KL(behavior || target)"
REVERSE = "KL(target || behavior)"
_SIGN = f"{FORWARD}; positive where the target gives the tokens less than the behavior policy does"
_SCHULMAN = "Schulman 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html"
_WEIGHTED = "The tokens are weighted by their ratio, so that the mean is one under the target."
_PRODUCT = "The ratio of a sequence is the product of its token ratios."

K3_KL = Metric(
    name="k3_kl",
    family=MAGNITUDE,
    label="KL by k3",
    says="An estimate of KL(behavior || target) per token. It is never negative, and has a low "
    "variance where the mismatch is small; elsewhere a few tokens with a large ratio dominate it.",
    formula="E[ratio - 1 - log_ratio]",
    unit="nats",
    ideal=0.0,
    direction=FORWARD,
    presupposes=BEHAVIOR_SAMPLED,
    guide=Guide(
        warning=1e-3,
        error=1e-2,
        source=f"{PROPOSAL} for dense models (mixture of experts: 0.005, 0.03); NeMo RL calls "
        "below 0.001 acceptable",
    ),
    source=_SCHULMAN,
    elsewhere={
        "verl": "rollout_corr/k3_kl (mismatch/mismatch_k3_kl in 0.6.0)",
        "slime": "mis_k3_kl: mean over sequences of their means, not over tokens",
        "NeMo RL": "gen_kl_error",
        "prime-rl": "mismatch_kl/all/mean",
        "ms-swift": "rollout_correction/k3_kl: log-ratios are clamped at 10",
    },
    example=RATIOS_OF_EXAMPLE + "0.5199",
    see=("k3", "rollout_corr/k3_kl"),
    headline=True,
    from_totals=lambda t: t.per_token("k3"),
    bound=0.0,
    giants="token",
    beyond_sample=lambda s, high: largest_mean_square(s, "k3", 2.0 * high) / 2.0,
)

K1_KL = Metric(
    name="k1_kl",
    family=MAGNITUDE,
    label="KL by k1",
    says="An estimate of KL(behavior || target) per token. It is unbiased, noisy, and may be "
    "negative. It is not judged: k3_kl, which estimates the same number, is, and is never below "
    "exp(|k1_kl|) - 1 - |k1_kl| where k1_kl is negative.",
    formula="E[-log_ratio]",
    unit="nats",
    ideal=0.0,
    direction=_SIGN,
    presupposes=BEHAVIOR_SAMPLED,
    source=_SCHULMAN,
    elsewhere={
        "verl": "rollout_corr/kl (mismatch/mismatch_kl in 0.6.0): its document calls |kl| above "
        "0.1 an alarm",
        "slime": "mis_kl: mean over sequences of their means, not over tokens",
        "AReaL": "behave_approx_kl: with the opposite sign",
        "OpenRLHF": "vllm_kl",
    },
    example=RATIOS_OF_EXAMPLE + "0.04",
    see=("k1", "rollout_corr/kl"),
    headline=True,
    from_totals=lambda t: -t.per_token("log_ratio"),
)

K2_KL = Metric(
    name="k2_kl",
    family=MAGNITUDE,
    label="KL by k2",
    says="Half the mean squared log-ratio of the tokens: the size of the mismatch, whoever sampled "
    "them. To second order it is the KL divergence in either direction.",
    formula="E[log_ratio^2] / 2",
    unit="nats",
    ideal=0.0,
    direction=SYMMETRIC,
    guide=Guide(
        warning=5e-3,
        error=2e-2,
        source=f"{PROPOSAL}; M2PO (arXiv 2510.01161) keeps E[log_ratio^2], which is twice this, "
        "below 0.04, so this below 0.02",
    ),
    source=_SCHULMAN,
    elsewhere={"AReaL": "kl_div_taylor: of current and old policy"},
    example=RATIOS_OF_EXAMPLE + "0.396",
    see=("k2",),
    from_totals=lambda t: t.per_token("k2"),
    bound=0.0,
    beyond_sample=lambda s, high: largest_mean_square(s, "k2", 2.0 * high) / 2.0,
)

K1_KL_SEQ = Metric(
    name="k1_kl_seq",
    family=MAGNITUDE,
    label="KL by k1 of sequences",
    says="An estimate of KL(behavior || target) of whole sequences: that per token, times the "
    "length. It is unbiased, and may be negative.",
    formula="E[-sum log_ratio] over sequences",
    unit="nats",
    ideal=0.0,
    direction=_SIGN,
    presupposes=SEQUENCES_SAMPLED,
    source=_SCHULMAN,
    example=RATIOS_OF_EXAMPLE + "0.1",
    see=("k1_kl",),
    from_totals=lambda t: -t.per_sequence("seq_log_ratio"),
)


def _kl(
    name: str, label: str, says: str, formula: str, direction: str, sums: str, example: str
) -> Metric:
    """Return a KL metric without a guide: the mean of `sums`, whose name tells the level."""
    sequences = sums.startswith("seq_")
    sampled = SEQUENCES_SAMPLED if sequences else BEHAVIOR_SAMPLED
    return Metric(
        name=name,
        family=MAGNITUDE,
        label=label,
        says=f"{says} {_PRODUCT}" if sequences else says,
        formula=f"{formula} over sequences" if sequences else formula,
        unit="nats",
        ideal=0.0,
        direction=direction,
        presupposes=None if direction == SYMMETRIC else sampled,
        source=_SCHULMAN,
        example=RATIOS_OF_EXAMPLE + example,
        see=(name.partition("_")[0],),
        from_totals=lambda t: t.per_sequence(sums) if sequences else t.per_token(sums),
        bound=None if name.startswith("k1") else 0.0,
        giants=None if direction == SYMMETRIC else "seq" if sequences else "token",
    )


_K1_REVERSE = f"An estimate of KL(target || behavior). {_WEIGHTED}"
_K2_REVERSE = f"An estimate of KL(target || behavior) to second order. {_WEIGHTED}"
_K3_REVERSE = f"An estimate of KL(target || behavior) that is never negative. {_WEIGHTED}"
_K1_R, _K2_R = "E[ratio log_ratio]", "E[ratio log_ratio^2] / 2"
_K3_R = "E[ratio log_ratio - ratio + 1]"
_SIDE = "from the target's side"
_SEQ = "of sequences"

KLS = (
    _kl("k1_kl_reverse", f"KL by k1, {_SIDE}", _K1_REVERSE, _K1_R, REVERSE, "k1_reverse", "1.216"),
    _kl("k2_kl_reverse", f"KL by k2, {_SIDE}", _K2_REVERSE, _K2_R, REVERSE, "k2_reverse", "1.069"),
    _kl("k3_kl_reverse", f"KL by k3, {_SIDE}", _K3_REVERSE, _K3_R, REVERSE, "k3_reverse", "0.7357"),
    K1_KL_SEQ,
    _kl(
        "k2_kl_seq",
        f"KL by k2 {_SEQ}",
        "Half the mean squared log-ratio of whole sequences, whoever sampled them.",
        "E[(sum log_ratio)^2] / 2",
        SYMMETRIC,
        "seq_k2",
        "1.285",
    ),
    _kl(
        "k3_kl_seq",
        f"KL by k3 {_SEQ}",
        "An estimate of KL(behavior || target) of whole sequences that is never negative.",
        "E[ratio - 1 - log_ratio]",
        FORWARD,
        "seq_k3",
        "1.432",
    ),
    _kl(
        "k1_kl_reverse_seq",
        f"KL by k1 {_SEQ}, {_SIDE}",
        _K1_REVERSE,
        _K1_R,
        REVERSE,
        "seq_k1_reverse",
        "3.206",
    ),
    _kl(
        "k2_kl_reverse_seq",
        f"KL by k2 {_SEQ}, {_SIDE}",
        _K2_REVERSE,
        _K2_R,
        REVERSE,
        "seq_k2_reverse",
        "2.653",
    ),
    _kl(
        "k3_kl_reverse_seq",
        f"KL by k3 {_SEQ}, {_SIDE}",
        _K3_REVERSE,
        _K3_R,
        REVERSE,
        "seq_k3_reverse",
        "1.874",
    ),
)

TV_TOKEN = Metric(
    name="tv_token",
    family=MAGNITUDE,
    label="total variation of tokens",
    says="The total variation distance per token, from 0 to 1. Unlike half the mean |ratio - 1| it "
    "stays right where the sampler cuts off tokens of the target (top-p, top-k).",
    formula="E[(1 - ratio)+]",
    ideal=0.0,
    presupposes=BEHAVIOR_SAMPLED,
    example=RATIOS_OF_EXAMPLE + "0.2375",
    from_totals=lambda t: t.per_token("shortfall"),
    bound=0.0,
    most=1.0,
)
TV_SEQ = Metric(
    name="tv_seq",
    family=MAGNITUDE,
    label="total variation of sequences",
    says=f"The total variation distance of whole sequences, from 0 to 1. {_PRODUCT}",
    formula="E[(1 - prod ratio)+] over sequences",
    ideal=0.0,
    presupposes=SEQUENCES_SAMPLED,
    example=RATIOS_OF_EXAMPLE + "0.4087",
    see=("tv_token",),
    from_totals=lambda t: t.per_sequence("seq_shortfall"),
    bound=0.0,
    most=1.0,
)
HELLINGER2_TOKEN = Metric(
    name="hellinger2_token",
    family=MAGNITUDE,
    label="squared Hellinger distance of tokens",
    says="The squared Hellinger distance per token, from 0 to 1: the divergence whose estimate has "
    "the least variance, since large ratios hardly count. In a small sample it can come out below "
    "0; its level is unknown then.",
    formula="1 - E[sqrt(ratio)]",
    ideal=0.0,
    least=0.0,
    presupposes=BEHAVIOR_SAMPLED,
    example=RATIOS_OF_EXAMPLE + "-0.08942",
    from_totals=lambda t: t.per_token("root_shortfall"),
)
HELLINGER2_SEQ = Metric(
    name="hellinger2_seq",
    family=MAGNITUDE,
    label="squared Hellinger distance of sequences",
    says=f"The squared Hellinger distance of whole sequences, from 0 to 1. {_PRODUCT}",
    formula="1 - E[sqrt(prod ratio)] over sequences",
    ideal=0.0,
    least=0.0,
    presupposes=SEQUENCES_SAMPLED,
    example=RATIOS_OF_EXAMPLE + "-0.2722",
    see=("hellinger2_token",),
    from_totals=lambda t: t.per_sequence("seq_root_shortfall"),
)

DIVERGENCES = (K3_KL, K1_KL, K2_KL, *KLS, TV_TOKEN, TV_SEQ, HELLINGER2_TOKEN, HELLINGER2_SEQ)
