"""Bounds of the metrics, and inequalities between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy.special import logsumexp

from rcdiag.statistics.metrics import METRICS
from tests.builders import make_pair, metrics
from tests.statistics.strategies import Batch, batches, log_ratios, shifted

SMALL = 1e-9


@given(batches())
def test_divergences_and_distances_are_never_negative(batch):
    result = metrics(*batch)
    starts = ("k2_kl", "k3_kl", "tv_", "log_ratio_abs", "prob_diff", "ratio_outside")
    for name in METRICS:
        if name.startswith(starts) or name.endswith("self_normalised"):
            assert result[name] >= -SMALL or np.isnan(result[name]), name


@given(batches())
def test_shares_and_effective_sizes_are_at_most_one(batch):
    result = metrics(*batch)
    starts = ("tv_", "hellinger2_", "prob_diff_m", "ratio_outside", "ess_", "perplexity_ess")
    for name in (*(name for name in METRICS if name.startswith(starts)), "top_share"):
        assert result[name] <= 1.0 + SMALL or np.isnan(result[name]), name


@given(batches())
def test_quantiles_and_means_are_in_order(batch):
    result = metrics(*batch)
    names = [f"log_ratio_abs_{end}" for end in ("p50", "p90", "p99", "p99.9", "max")]
    values = [result[name] for name in names]
    assert values == sorted(values)
    assert result["log_ratio_abs_mean"] <= result["log_ratio_abs_max"] * (1 + 1e-12)
    assert result["prob_diff_mean"] <= result["prob_diff_max"] * (1 + 1e-12)
    counts = [result[f"ratio_outside_{bound}"] for bound in ("10", "5", "2", "1.5", "1.1")]
    assert counts == sorted(counts)
    spread = result["log_ppl_diff_min"], result["log_ppl_diff_mean"], result["log_ppl_diff_max"]
    assert spread[0] - SMALL <= spread[1] <= spread[2] + SMALL
    assert abs(result["log_ppl_diff_mean"]) <= result["log_ppl_diff_abs_mean"] + SMALL


@given(batches())
def test_effective_sizes_are_in_order_and_never_below_one_sample(batch):
    """Kish's never exceeds perplexity's (Renyi entropies), nor is it below 1 / (n max weight)."""
    result = metrics(*batch)
    for level, weights in weights_of(batch).items():
        kish, perplexity = result[f"ess_{level}"], result[f"perplexity_ess_{level}"]
        assert 1 / len(weights) - SMALL <= kish <= perplexity + SMALL
        assert 1 / (len(weights) * weights.max()) <= kish + SMALL


def weights_of(batch: Batch) -> dict[str, np.ndarray]:
    """Return normalised ratios of tokens and of sequences."""
    deltas = {
        "token": log_ratios(batch),
        "seq": np.array([sum(b) - sum(a) for a, b in zip(*batch, strict=True) if a]),
    }
    return {level: np.exp(delta - logsumexp(delta)) for level, delta in deltas.items()}


def test_a_single_weight_that_is_not_zero_leaves_one_sample():
    result = metrics([[-1.0], [-1.0], [-1.0], [-1.0]], [[-1.0], *[[-np.inf]] * 3])
    for name in ("ess_token", "ess_seq", "perplexity_ess_token", "perplexity_ess_seq"):
        assert result[name] == pytest.approx(1 / 4), name


@given(batches())
def test_ess_agrees_with_chi_squared_and_the_mean_ratio(batch):
    result = metrics(*batch)
    for level, mean in (("token", "ratio_mean"), ("seq", "ratio_mean_seq")):
        second_moment = result[f"ess_{level}"] * (1 + result[f"chi2_{level}"])
        assert second_moment == pytest.approx(result[mean] ** 2, rel=1e-6, abs=SMALL)
        self_normalised = result[f"chi2_{level}_self_normalised"]
        assert self_normalised == pytest.approx(1 / result[f"ess_{level}"] - 1)


@given(batches())
def test_mean_k3_less_mean_k1_is_mean_ratio_less_one(batch):
    result = metrics(*batch)
    gap = np.exp(make_pair(*batch).log_ratio).mean() - 1
    assert result["k3_kl"] - result["k1_kl"] == pytest.approx(gap, rel=1e-9, abs=1e-9)
    assert result["ratio_mean"] - 1 == pytest.approx(gap, abs=1e-9)
    reverse = result["k1_kl_reverse"] - result["k3_kl_reverse"]
    assert reverse == pytest.approx(gap, rel=1e-6, abs=1e-6)
    gap = result["ratio_mean_seq"] - 1
    of_sequences = result["k3_kl_seq"] - result["k1_kl_seq"]
    assert of_sequences == pytest.approx(gap, rel=1e-6, abs=1e-6)


@given(batches())
def test_total_variation_is_half_the_deviation_and_half_the_missing_ratio(batch):
    result = metrics(*batch)
    expected = (result["ratio_deviation_mean"] + 1 - result["ratio_mean"]) / 2
    assert result["tv_token"] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(batches())
def test_divergences_of_ratios_with_mean_one_order_each_other(batch):
    """With mean 1, sample and reweighted sample are distributions, so all theorems hold."""
    result = metrics(*shifted(batch, -float(np.log(np.mean(np.exp(log_ratios(batch)))))))
    forward, backward = result["k1_kl"], result["k1_kl_reverse"]
    tv, hellinger2, chi2 = (result[name] for name in ("tv_token", "hellinger2_token", "chi2_token"))
    assert result["ratio_mean"] == pytest.approx(1.0)
    assert result["k3_kl"] == pytest.approx(forward, abs=1e-9)
    assert result["k3_kl_reverse"] == pytest.approx(backward, abs=1e-9)
    assert result["ratio_deviation_mean"] == pytest.approx(2 * tv, abs=1e-9)
    assert result["perplexity_ess_token"] == pytest.approx(np.exp(-backward))
    half_order = -2 * np.log1p(-min(max(hellinger2, 0.0), 1.0))
    for kl in (forward, backward):
        assert half_order <= kl + SMALL  # Renyi divergences grow with their order
        assert tv**2 <= kl / 2 + SMALL  # Pinsker
        assert tv <= np.sqrt(max(-np.expm1(-kl), 0.0)) + SMALL  # Bretagnolle and Huber
    assert backward <= np.log1p(chi2) + SMALL
    assert hellinger2 <= tv + SMALL
    assert tv <= np.sqrt(max(2 * hellinger2, 0.0)) + np.sqrt(SMALL)
    assert tv <= np.sqrt(max(chi2, 0.0)) / 2 + SMALL
