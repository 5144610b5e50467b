"""How many samples are left after importance weighting."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics.metrics.metric import PROPOSAL, Averaged, Guide, Metric
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.totals import Totals


def _count(t: Totals, level: str) -> Array:
    return t.sequences if level == "seq" else t.tokens


def ess(t: Totals, level: str) -> Array:
    """Effective sample size (sum ratio)^2 / (n sum ratio^2), a fraction in (0, 1] of tokens or
    sequences; in log space, so that no ratio overflows.

    Source: Kong 1992; Owen, Monte Carlo theory, methods and examples, ch. 9.
    """
    name = f"{level}_ratio"
    return np.exp(2.0 * t.log_sums[name] - t.log_squares[name] - np.log(_count(t, level)))


def perplexity_ess(t: Totals, level: str) -> Array:
    """exp(entropy of the normalised ratios) / n: less ruled by one giant than `ess`.

    With w = ratio / sum ratio the entropy is log sum ratio - sum w log_ratio.
    Source: Robert & Casella 2004, Monte Carlo Statistical Methods, 14.3.
    """
    name = f"{level}_ratio"
    return np.exp(t.log_sums[name] - t.tilted[name] - np.log(_count(t, level)))


def chi2_self_normalised(t: Totals, level: str) -> Array:
    """E[ratio^2] / E[ratio]^2 - 1: the squared coefficient of variation, never negative."""
    return 1.0 / ess(t, level) - 1.0


OVERLAP: dict[str, Metric] = {
    "ess_token": Averaged(
        label="ESS of tokens, raw ratios",
        unit="fraction",
        ideal=1.0,
        about="(sum ratio)^2 / (n sum ratio^2) over tokens, unclamped",
        formula=lambda t: ess(t, "token"),
    ),
    "ess_seq": Averaged(
        label="ESS of sequences, raw ratios",
        unit="fraction",
        ideal=1.0,
        about="(sum ratio)^2 / (n sum ratio^2) over sequences with the product of their token "
        "ratios; 0.3 is usual with several turns. A giant ratio that the sample never met makes it "
        "too high, and its interval cannot know: see khat_seq",
        guide=Guide(0.5, 0.1, f"{PROPOSAL}; verl's guide wants 0.5"),
        headline=True,
        formula=lambda t: ess(t, "seq"),
    ),
    "perplexity_ess_token": Averaged(
        label="perplexity ESS of tokens",
        unit="fraction",
        ideal=1.0,
        about="exp(entropy of normalised ratios) / n over tokens",
        formula=lambda t: perplexity_ess(t, "token"),
    ),
    "perplexity_ess_seq": Averaged(
        label="perplexity ESS of sequences",
        unit="fraction",
        ideal=1.0,
        about="exp(entropy of normalised ratios) / n over sequences; far above the square root of "
        "ess_seq, few giants rule",
        formula=lambda t: perplexity_ess(t, "seq"),
    ),
    "chi2_token": Averaged(
        label="chi-squared, token",
        ideal=0.0,
        about="chi2(target || behavior) per token, E[ratio^2] - 1; its estimate may be negative",
        guide=Guide(1.0, np.inf, "verl rollout-correction guide: above 1 severe"),
        formula=lambda t: t.per_token("squared_excess"),
    ),
    "chi2_seq": Averaged(
        label="chi-squared, sequence",
        ideal=0.0,
        about="chi2(target || behavior) of whole sequences, E[(prod ratio)^2] - 1, unclamped",
        headline=True,
        formula=lambda t: t.per_sequence("seq_squared_excess"),
    ),
    "chi2_token_self_normalised": Averaged(
        label="chi-squared, token, self-normalised",
        ideal=0.0,
        about="E[ratio^2] / E[ratio]^2 - 1 over tokens, 1 / ess_token - 1; never negative",
        formula=lambda t: chi2_self_normalised(t, "token"),
    ),
    "chi2_seq_self_normalised": Averaged(
        label="chi-squared, sequence, self-normalised",
        ideal=0.0,
        about="E[(prod ratio)^2] / E[prod ratio]^2 - 1 over sequences, 1 / ess_seq - 1",
        formula=lambda t: chi2_self_normalised(t, "seq"),
    ),
}
