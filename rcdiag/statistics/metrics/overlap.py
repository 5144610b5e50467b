"""Metrics of overlap: how many samples are left after importance weighting."""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.statistics.metrics.expected import ess_guide, expected_ess_seq
from rcdiag.statistics.metrics.metric import (
    BEHAVIOR_SAMPLED,
    OVERLAP,
    RATIOS_OF_EXAMPLE,
    SEQUENCES_SAMPLED,
    Metric,
)
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.second_moment import ess, largest_entropy, largest_growth
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals


def perplexity_ess(t: Totals, level: str) -> Array:
    """Return exp(entropy of the normalised ratios) / n: one large ratio counts less than in `ess`.

    With w = ratio / sum ratio, the entropy is log sum ratio - sum w log_ratio.
    Source: Robert & Casella 2004, Monte Carlo Statistical Methods, 14.3.
    """
    name = f"{level}_ratio"
    count = t.sequences if level == "seq" else t.tokens
    share: Array = np.exp(t.log_sums[name] - t.tilted[name] - np.log(count))
    return share


def chi2_self_normalised(t: Totals, level: str) -> Array:
    """Return E[ratio^2] / E[ratio]^2 - 1: the squared coefficient of variation, never negative."""
    return 1.0 / ess(t, level) - 1.0


def least_ess(level: str, suite: Suite, low: float) -> float:
    """Lower the end `low` of an ESS's interval by what the tail beyond the sample may add."""
    return 1.0 / largest_growth(suite, level, 1.0 / low) if low > 0.0 else 0.0


def least_perplexity_ess(level: str, suite: Suite, low: float) -> float:
    """Lower the end `low` of a perplexity ESS's interval, as `least_ess` does."""
    if low <= 0.0:
        return 0.0
    return float(np.exp(-largest_entropy(suite, level, -float(np.log(low)))))


_ESS = "(sum ratio)^2 / (n sum ratio^2)"
_PERPLEXITY = "exp(entropy of normalised ratios) / n"
_CHI2 = "chi2(target || behavior)"
_KONG = "Kong 1992; Owen, Monte Carlo theory, methods and examples, ch. 9"
_ROBERT = "Robert & Casella 2004, Monte Carlo Statistical Methods, 14.3"

ESS_SEQ_GUIDE = Guide(
    warning=0.5,
    error=0.1,
    source=f"{PROPOSAL}, lower in proportion where rounding alone, at the declared precisions, "
    "gives less than 0.75 at these lengths; verl, docs/algo/rollout_corr.md, wants 0.5",
)

OVERLAPS = (
    Metric(
        name="ess_token",
        family=OVERLAP,
        label="ESS of tokens, raw ratios",
        says="The effective sample size of the tokens, as a fraction, when they are weighted by "
        "their raw ratios: no clamp, no truncation.",
        formula=f"{_ESS} over tokens",
        unit="fraction",
        ideal=1.0,
        presupposes=BEHAVIOR_SAMPLED,
        source=_KONG,
        elsewhere={
            "verl": "rollout_corr/rollout_is_eff_sample_size (mismatch/... in 0.6.0): of clipped "
            "raw weights until 0.7.1, of applied weights from 0.8.0 on",
        },
        example=RATIOS_OF_EXAMPLE + "0.4849",
        see=("ESS", "rollout_corr/rollout_is_eff_sample_size"),
        from_totals=lambda t: ess(t, "token"),
        bound=1.0,
        least=0.0,
        giants="token",
        giants_move="low",
        beyond_sample=partial(least_ess, "token"),
    ),
    Metric(
        name="ess_seq",
        family=OVERLAP,
        label="ESS of sequences, raw ratios",
        says="The effective sample size of the sequences, as a fraction, when they are weighted by "
        "the products of their token ratios: 0.3 is usual with several turns. It is too "
        "high where the sample missed a rare large ratio: the lower end of its interval is that "
        "of the sample or of a lognormal fit, whichever is lower, and is omitted where the tail "
        "(khat_seq) or the number of sequences cannot exclude such ratios.",
        formula=f"{_ESS} over sequences",
        unit="fraction",
        ideal=1.0,
        presupposes=SEQUENCES_SAMPLED,
        guide=ESS_SEQ_GUIDE,
        guide_for=partial(ess_guide, ESS_SEQ_GUIDE),
        expects=expected_ess_seq,
        source=_KONG,
        example=RATIOS_OF_EXAMPLE + "0.5407",
        see=("ESS", "khat_seq"),
        headline=True,
        from_totals=lambda t: ess(t, "seq"),
        bound=1.0,
        least=0.0,
        giants="seq",
        giants_move="low",
        beyond_sample=partial(least_ess, "seq"),
    ),
    Metric(
        name="perplexity_ess_token",
        family=OVERLAP,
        label="perplexity ESS of tokens",
        says="The effective sample size of the tokens by the entropy of their normalised ratios, "
        "as a fraction: less sensitive to one large ratio than ess_token.",
        formula=f"{_PERPLEXITY} over tokens",
        unit="fraction",
        ideal=1.0,
        presupposes=BEHAVIOR_SAMPLED,
        source=_ROBERT,
        example=RATIOS_OF_EXAMPLE + "0.6509",
        see=("ess_token",),
        from_totals=lambda t: perplexity_ess(t, "token"),
        bound=1.0,
        least=0.0,
        giants="token",
        giants_move="low",
        beyond_sample=partial(least_perplexity_ess, "token"),
    ),
    Metric(
        name="perplexity_ess_seq",
        family=OVERLAP,
        label="perplexity ESS of sequences",
        says="The effective sample size of the sequences by the entropy of their normalised "
        "ratios, as a fraction. Far above the square root of ess_seq, a few large ratios dominate.",
        formula=f"{_PERPLEXITY} over sequences",
        unit="fraction",
        ideal=1.0,
        presupposes=SEQUENCES_SAMPLED,
        source=_ROBERT,
        example=RATIOS_OF_EXAMPLE + "0.5899",
        see=("ess_seq",),
        from_totals=lambda t: perplexity_ess(t, "seq"),
        bound=1.0,
        least=0.0,
        giants="seq",
        giants_move="low",
        beyond_sample=partial(least_perplexity_ess, "seq"),
    ),
    Metric(
        name="chi2_token",
        family=OVERLAP,
        label="chi-squared, token",
        says="The chi-squared divergence per token: how much the variance of a mean grows when "
        "tokens are weighted by their ratios. The estimate is below 0 where the sampled ratios "
        "have too low a mean: it is noise then, and its level is unknown.",
        formula="E[ratio^2] - 1",
        ideal=0.0,
        least=0.0,
        direction=_CHI2,
        presupposes=BEHAVIOR_SAMPLED,
        guide=Guide(
            warning=1.0,
            error=np.inf,
            source="verl, docs/algo/rollout_corr.md: above 1 severe",
        ),
        elsewhere={
            "verl": "rollout_corr/chi2_token, from 0.6.1 on",
            "slime": "mis_chi2_token: mean over sequences of their means, less 1",
        },
        example=RATIOS_OF_EXAMPLE + "3.517",
        see=("rollout_corr/chi2_token",),
        from_totals=lambda t: t.per_token("squared_excess"),
        bound=-1.0,
        giants="token",
        beyond_sample=lambda s, high: largest_growth(s, "token", 1.0 + high) - 1.0,
    ),
    Metric(
        name="chi2_seq",
        family=OVERLAP,
        label="chi-squared, sequence",
        says="The chi-squared divergence of whole sequences, from the products of their token "
        "ratios, unclamped. The estimate is below 0 where the sampled ratios have too low a mean, "
        "as when rare large ones are missed: its level is unknown then.",
        formula="E[(prod ratio)^2] - 1 over sequences",
        ideal=0.0,
        least=0.0,
        direction=_CHI2,
        presupposes=SEQUENCES_SAMPLED,
        elsewhere={
            "verl": "rollout_corr/chi2_seq, from 0.6.1 on: over all rows, one without a token "
            "counts as 0",
            "slime": "mis_chi2_seq",
            "ms-swift": "rollout_correction/chi2_seq is another number: of geometric means",
        },
        example=RATIOS_OF_EXAMPLE + "9.059",
        see=("rollout_corr/chi2_seq",),
        from_totals=lambda t: t.per_sequence("seq_squared_excess"),
        bound=-1.0,
        giants="seq",
        beyond_sample=lambda s, high: largest_growth(s, "seq", 1.0 + high) - 1.0,
    ),
    Metric(
        name="chi2_token_self_normalised",
        family=OVERLAP,
        label="chi-squared, token, self-normalised",
        says="The squared coefficient of variation of the tokens' ratios, 1 / ess_token - 1. It is "
        "never negative.",
        formula="E[ratio^2] / E[ratio]^2 - 1",
        ideal=0.0,
        direction=_CHI2,
        presupposes=BEHAVIOR_SAMPLED,
        example=RATIOS_OF_EXAMPLE + "1.062",
        see=("ess_token",),
        from_totals=lambda t: chi2_self_normalised(t, "token"),
        bound=0.0,
        giants="token",
        beyond_sample=lambda s, high: largest_growth(s, "token", 1.0 + high) - 1.0,
    ),
    Metric(
        name="chi2_seq_self_normalised",
        family=OVERLAP,
        label="chi-squared, sequence, self-normalised",
        says="The squared coefficient of variation of the sequences' ratios, 1 / ess_seq - 1. It "
        "is never negative.",
        formula="E[(prod ratio)^2] / E[prod ratio]^2 - 1 over sequences",
        ideal=0.0,
        direction=_CHI2,
        presupposes=SEQUENCES_SAMPLED,
        example=RATIOS_OF_EXAMPLE + "0.8495",
        see=("ess_seq",),
        from_totals=lambda t: chi2_self_normalised(t, "seq"),
        bound=0.0,
        giants="seq",
        beyond_sample=lambda s, high: largest_growth(s, "seq", 1.0 + high) - 1.0,
    ),
)
