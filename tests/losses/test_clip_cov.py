"""clip_cov drops tokens at random: the expectation against a mean over all draws."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tests.losses.batches import PaddedLoss
from tests.losses.rules import evaluate, loss_settings

MASK = np.array([[True] * 4, [True] * 3 + [False]])
CURRENT = np.array([[-0.3, -2.5, -1.0, -4.0], [-0.2, -3.5, -0.9, 0.0]])
OLD = np.array([[-0.35, -2.4, -1.5, -3.9], [-0.25, -3.6, -0.8, 0.0]])
ADVANTAGES = np.array([[2.0, -1.0, 1.0, -2.0], [1.5, -0.5, 1.0, 0.0]])
BATCH = PaddedLoss(CURRENT, OLD, ADVANTAGES, MASK, MASK, None)
LOW, HIGH = 0.5, 4.0


def every_lot(
    scale: np.ndarray, share: float, low: float, high: float
) -> tuple[float, np.ndarray, float, int]:
    """Return means over all draws: sum of scale x loss, gradient, dropped share, candidates.

    `scale` multiplies each token's advantage before covariances are computed.
    """
    current, old, advantages = CURRENT[MASK], OLD[MASK], ADVANTAGES[MASK]
    scaled, ratio = advantages * scale, np.exp(current - old)
    clipped = -advantages * np.clip(ratio, 0.8, 1.2) > -advantages * ratio
    losses = np.maximum(-scaled * ratio, -scaled * np.clip(ratio, 0.8, 1.2))
    slopes = np.where(clipped, 0.0, -scaled * ratio)
    covariance = (scaled - scaled.mean()) * (current - current.mean())
    candidates = np.flatnonzero((covariance > low) & (covariance < high) & ~clipped)
    lots = list(combinations(candidates, min(max(int(share * len(current)), 1), len(candidates))))
    stays = [~np.isin(np.arange(len(current)), lot) for lot in lots]
    return (
        float(np.mean([losses[stay].sum() for stay in stays])),
        np.mean([slopes * stay for stay in stays], axis=0),
        float(np.mean([1 - stay.mean() for stay in stays])),
        len(candidates),
    )


@pytest.mark.parametrize("share", [2e-4, 0.3, 0.5, 1.0])
def test_the_mean_over_all_draws(share):
    loss, slopes, left_out, candidates = every_lot(np.ones(7), share, LOW, HIGH)
    assert candidates == 5
    chosen = loss_settings(
        clip_cov_ratio=share, clip_cov_lb=LOW, clip_cov_ub=HIGH, aggregation="token-mean"
    )
    result = evaluate(BATCH.flat(), "clip_cov", chosen, "verl-0.9")
    assert result.loss == pytest.approx(loss / 7, rel=1e-12)
    assert result.coefficients == pytest.approx(slopes / 7, rel=1e-12)
    assert result.metrics["actor/pg_clipfrac"] == pytest.approx(left_out, rel=1e-8)
    assert result.metrics["actor/ppo_kl"] == pytest.approx((OLD - CURRENT)[MASK].mean())


def test_without_a_candidate_it_is_ppo():
    chosen = loss_settings(clip_cov_lb=50.0, clip_cov_ub=60.0, aggregation="token-mean")
    result = evaluate(BATCH.flat(), "clip_cov", chosen, "verl-0.9")
    ppo = evaluate(BATCH.flat(), "vanilla", chosen, "verl-0.9")
    assert result.loss == pytest.approx(ppo.loss, rel=1e-12)
    assert result.metrics["actor/pg_clipfrac"] == 0.0


def test_skyrl_takes_the_covariance_of_advantages_after_the_reduction():
    scale = np.array([1 / 4] * 4 + [1 / 3] * 3) / 2  # the mean over rows of means over tokens
    loss, slopes, left_out, candidates = every_lot(scale, 0.3, 0.1, 0.6)
    assert candidates == 5
    chosen = loss_settings(
        clip_cov_ratio=0.3, clip_cov_lb=0.1, clip_cov_ub=0.6, aggregation="seq-mean-token-mean"
    )
    result = evaluate(BATCH.flat(), "clip_cov", chosen, "skyrl-0.4")
    assert result.loss == pytest.approx(loss, rel=1e-12)
    assert result.coefficients == pytest.approx(slopes, rel=1e-12)
    assert result.metrics["policy/loss_metrics/clip_ratio"] == pytest.approx(left_out, rel=1e-8)
