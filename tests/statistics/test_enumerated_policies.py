"""Every divergence against its exact value, by enumerating all sequences of two policies."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.builders import metrics
from tests.statistics.enumerated import LENGTH, SEQUENCES, Exact, near, rational_policy, token_probs

SPREADS = [0.05, 0.3, 1.0]


@cache
def exact(spread: float, zeros: bool = False) -> Exact:
    behavior = rational_policy(3, zeros=zeros)
    return Exact(behavior, near(behavior, spread, seed=4))


@cache
def enumerated(spread: float, zeros: bool = False, tokens: int = LENGTH) -> dict[str, float]:
    """Compute metrics of a batch in which every sequence has its exact frequency."""
    return metrics(*exact(spread, zeros).batch(tokens))


# If the target is within the behavior's support; k2 is biased and estimates no divergence.
NAMES = {
    "k1_kl": "kl",
    "k3_kl": "kl",
    "k1_kl_reverse": "reverse",
    "k3_kl_reverse": "reverse",
    "chi2_token": "chi2",
    "tv_token": "tv",
    "hellinger2_token": "hellinger2",
}


@pytest.mark.parametrize("spread", SPREADS)
def test_token_metrics_are_the_exact_divergences_of_the_contexts(spread):
    expected = exact(spread).of_tokens()
    for name, divergence in NAMES.items():
        assert enumerated(spread)[name] == pytest.approx(expected[divergence], rel=1e-9), name
    deviation = enumerated(spread)["ratio_deviation_mean"]
    assert deviation == pytest.approx(2 * expected["tv"])


@pytest.mark.parametrize("spread", SPREADS)
def test_sequence_metrics_are_the_exact_divergences_of_the_sequences(spread):
    expected = exact(spread).of_sequences()
    for name, divergence in NAMES.items():
        of_sequences = name.replace("_token", "_seq") if "_token" in name else f"{name}_seq"
        result = enumerated(spread)[of_sequences]
        assert result == pytest.approx(expected[divergence], rel=1e-9), of_sequences


@pytest.mark.parametrize("spread", SPREADS)
def test_effective_sizes_are_those_of_the_exact_divergences(spread):
    for level, expected in (
        ("token", exact(spread).of_tokens()),
        ("seq", exact(spread).of_sequences()),
    ):
        result = enumerated(spread)
        assert result[f"ess_{level}"] == pytest.approx(1 / (1 + expected["chi2"]))
        assert result[f"perplexity_ess_{level}"] == pytest.approx(np.exp(-expected["reverse"]))
        assert result[f"chi2_{level}_self_normalised"] == pytest.approx(expected["chi2"])


@pytest.mark.parametrize("spread", SPREADS)
def test_kl_of_a_sequence_is_the_sum_of_that_of_its_tokens(spread):
    result = enumerated(spread)
    kl = exact(spread).of_sequences()["kl"]
    for name in ("k1_kl", "k3_kl"):
        assert LENGTH * result[name] == pytest.approx(kl), name
    assert result["log_ppl_diff_mean"] == pytest.approx(kl / LENGTH)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_mean_ratio_is_one_at_every_prefix(tokens):
    result = enumerated(1.0, tokens=tokens)
    assert result["ratio_mean"] == pytest.approx(1.0, abs=1e-12)
    assert result["ratio_mean_seq"] == pytest.approx(1.0, abs=1e-12)
    assert abs(result["ratio_mean_z"]) < 1e-6
    assert abs(result["ratio_mean_seq_z"]) < 1e-6


@pytest.mark.parametrize("spread", SPREADS)
def test_total_variation_is_exact_if_the_behavior_excludes_tokens(spread):
    truncated, result = exact(spread, zeros=True), enumerated(spread, zeros=True)
    missing = 1 - result["ratio_mean"]
    assert missing > 0.01
    of_tokens = truncated.of_tokens()["tv"]
    assert result["tv_token"] == pytest.approx(of_tokens)
    assert result["tv_seq"] == pytest.approx(truncated.of_sequences()["tv"])
    # The other formula misses half of the mass outside the sampler's support.
    assert result["ratio_deviation_mean"] / 2 == pytest.approx(of_tokens - missing / 2)
    assert result["hellinger2_seq"] == pytest.approx(truncated.of_sequences()["hellinger2"])
    assert result["ratio_mean_seq_z"] < -4.0
    assert result["ratio_mean_z"] < -4.0


def drawn(policies: Exact, sampler: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probs of both policies on sequences drawn from one of them."""
    distribution = policies.sequence_distributions[0 if sampler == "behavior" else 1]
    chosen = np.random.default_rng(seed).choice(len(SEQUENCES), p=distribution, size=20_000)
    tables = [
        np.log([token_probs(policy, sequence) for sequence in SEQUENCES])
        for policy in (policies.behavior, policies.target)
    ]
    return tables[0][chosen], tables[1][chosen]


def test_kappa_shows_who_sampled():
    policies = exact(0.1)
    by_behavior = metrics(*drawn(policies, "behavior", 0))
    by_target = metrics(*drawn(policies, "target", 0))
    assert by_behavior["kappa_se"] == pytest.approx(by_target["kappa_se"], rel=0.1)
    assert by_behavior["kappa"] == pytest.approx(1.0, abs=4 * by_behavior["kappa_se"] + 0.02)
    assert by_target["kappa"] == pytest.approx(-1.0, abs=4 * by_target["kappa_se"] + 0.02)
    assert by_behavior["kappa_se"] < 0.15


def test_sampled_divergences_are_near_the_exact_ones():
    policies = exact(0.3)
    result, expected = metrics(*drawn(policies, "behavior", 1)), policies.of_sequences()
    assert result["k1_kl_seq"] == pytest.approx(expected["kl"], rel=0.1)
    assert result["tv_seq"] == pytest.approx(expected["tv"], rel=0.05)
    assert result["hellinger2_seq"] == pytest.approx(expected["hellinger2"], rel=0.15)
    assert abs(result["ratio_mean_seq_z"]) < 4.0
    assert abs(result["ratio_mean_z"]) < 4.0


def test_the_variance_ratio_is_one_without_a_sequence_offset_only():
    behavior, target = drawn(exact(0.1), "behavior", 2)
    assert metrics(behavior, target)["variance_ratio"] == pytest.approx(1.0, abs=0.1)
    offset = np.random.default_rng(0).normal(0.0, 0.2, size=(len(behavior), 1))
    assert metrics(behavior, target + offset)["variance_ratio"] > 2.0
