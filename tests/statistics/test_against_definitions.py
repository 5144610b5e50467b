"""The metrics against an oracle of another make: padded matrices, masks, and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import pearsonr

from rcdiag.statistics.metrics import METRICS
from tests.builders import metrics
from tests.statistics.strategies import Batch, batches, seeded_batch


def padded(rows: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """[batch, longest] values, NaN where there is no token, and the mask."""
    width = max(len(row) for row in rows)
    values = np.full((len(rows), width), np.nan)
    for index, row in enumerate(rows):
        values[index, : len(row)] = row
    return values, ~np.isnan(values)


def by_definition(batch: Batch) -> dict[str, float]:
    (mu, mask), (pi, _) = padded(batch[0]), padded(batch[1])
    some = mask.any(axis=1)
    mu, pi, mask = mu[some], pi[some], mask[some]
    delta = (pi - mu)[mask]
    p, q = np.exp(mu[mask]), np.exp(pi[mask])
    per_sequence = np.nansum(pi - mu, axis=1)

    def ess(log_weights: np.ndarray) -> float:
        normal = np.exp(log_weights - logsumexp(log_weights))
        return float(1.0 / np.sum(normal**2) / len(normal))

    return {
        "k1_kl": np.mean(-delta),
        "k2_kl": np.mean(delta**2 / 2),
        "k3_kl": np.mean(np.exp(delta) - 1 - delta),
        "log_ratio_abs_mean": np.mean(np.abs(delta)),
        "log_ratio_abs_max": np.max(np.abs(delta)),
        "behavior_ppl": np.mean(np.exp(-np.nanmean(mu, axis=1))),
        "target_ppl": np.mean(np.exp(-np.nanmean(pi, axis=1))),
        "ppl_ratio": np.mean(np.exp(np.nanmean(mu, axis=1) - np.nanmean(pi, axis=1))),
        "prob_diff_mean": np.mean(np.abs(p - q)),
        "prob_diff_max": np.max(np.abs(p - q)),
        "chi2_token": np.mean(np.exp(delta) ** 2) - 1,
        "chi2_seq": np.mean(np.exp(per_sequence) ** 2) - 1,
        "ess_token": ess(delta),
        "ess_seq": ess(per_sequence),
    }


@given(batches())
def test_metrics_are_what_their_definitions_say(batch):
    found, wanted = metrics(*batch), by_definition(batch)
    assert set(wanted) == set(METRICS) - {"prob_pearson"}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-8, abs=1e-10), name


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_larger_batches_are_what_their_definitions_say(seed):
    batch = seeded_batch(seed, sequences=200)
    found, wanted = metrics(*batch), by_definition(batch)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-8), name


@pytest.mark.parametrize("seed", range(5))
def test_pearson_is_that_of_scipy(seed):
    behavior, target = seeded_batch(seed, sequences=50)
    p = np.exp([value for row in behavior for value in row])
    q = np.exp([value for row in target for value in row])
    assert metrics(behavior, target)["prob_pearson"] == pytest.approx(pearsonr(p, q).statistic)


@pytest.mark.parametrize("spread", [1e-4, 1e-5, 1e-6, 1e-7])
def test_pearson_of_a_very_confident_policy_keeps_its_digits_or_is_no_number(spread):
    random = np.random.default_rng(3)
    behavior = -spread * random.exponential(size=2000)
    target = behavior * random.uniform(0.5, 1.5, size=2000)
    wanted = pearsonr(-np.expm1(behavior), -np.expm1(target)).statistic
    found = metrics([behavior.tolist()], [target.tolist()])["prob_pearson"]
    assert np.isnan(found) or found == pytest.approx(wanted, abs=1e-3)


@given(batches())
def test_pearson_is_a_correlation_or_no_number(batch):
    found = metrics(*batch)["prob_pearson"]
    assert np.isnan(found) or -1 - 1e-3 <= found <= 1 + 1e-3


@given(st.floats(-20.0, 0.0), st.lists(st.floats(-20.0, 0.0), min_size=1, max_size=10))
def test_pearson_with_a_constant_side_is_no_number(constant, other):
    assert np.isnan(metrics([[constant] * len(other)], [other])["prob_pearson"])
