"""Coefficients are d loss / d current, against finite differences and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch
from rcdiag.losses.selected import covariances
from tests.examples import dear
from tests.losses.batches import (
    SETTINGS,
    PaddedLoss,
    losses_of,
    nearest_choices_differ,
    one_row,
    padded_losses,
)
from tests.losses.rules import RULES, default_settings, evaluate, loss_settings

STEP = 1e-5
# These losses stop gradients, so finite differences do not apply.
WITH_CONSTANT_PARTS = ("gspo", "cispo", "dppo_tv", "dppo_kl")


def smooth(trainer: str, loss: str) -> bool:
    if trainer == "slime":
        return loss != "cispo"
    return loss not in WITH_CONSTANT_PARTS


def far_from_bounds(batch: LossBatch, drawn: dict[str, Any]) -> bool:
    """Check that no token is close to the bounds of clip_cov's candidates."""
    result = covariances(batch.only_kept())
    bounds = (drawn["clip_cov_lb"], drawn["clip_cov_ub"])
    return all(bool(((result - bound).abs() > 1e-3).all()) for bound in bounds)


def differences(batch, loss, chosen, trainer):
    """Compute (loss(current + h) - loss(current - h)) / 2h, token by token."""
    result = []
    for at in range(len(batch.current)):
        shift = batch.current.new_zeros(batch.current.shape)
        shift[at] = STEP
        ends = [
            evaluate(replace(batch, current=batch.current + sign * shift), loss, chosen, trainer)
            for sign in (1, -1)
        ]
        result.append((ends[0].loss - ends[1].loss) / (2 * STEP))
    return np.array(result)


@pytest.mark.parametrize(
    ("trainer", "loss"),
    [case for case in losses_of("verl-0.6.0", "verl-0.9", "slime") if smooth(*case)],
)
@given(data=st.data(), batch=padded_losses(3, 4), drawn=SETTINGS)
@dear(25)
def test_finite_differences(trainer, loss, data, batch, drawn):
    chosen = loss_settings(
        **drawn,
        aggregation=data.draw(st.sampled_from(list(RULES[trainer].aggregations))),
        opsm_delta=data.draw(st.sampled_from((None, 0.1))),
    )
    flat = batch.flat()
    assume(loss != "kl_cov" or nearest_choices_differ(flat, drawn["kl_cov_ratio"], 1e-3))
    assume(loss != "clip_cov" or far_from_bounds(flat, drawn))
    result = evaluate(flat, loss, chosen, trainer)
    if result.undefined is None:
        expected = differences(flat, loss, chosen, trainer)
        size = max(1.0, float(np.abs(expected).max(initial=0.0)))
        assert result.coefficients == pytest.approx(expected, abs=1e-6 * size)


def ppo_slope(d: float, advantage: float, c: float = 3.0) -> float:
    """Return the derivative of PPO with dual clip at epsilon 0.2: -A ratio, 0 if clipped."""
    ratio = np.exp(d)
    if advantage >= 0:
        return -advantage * ratio if ratio < 1.2 else 0.0
    return -advantage * ratio if 0.8 < ratio < c else 0.0


@given(batch=padded_losses(3, 5))
def test_stopped_gradients_in_closed_form(batch):
    flat = batch.flat().only_kept()
    weights = np.ones(len(flat.current)) if flat.weights is None else flat.weights.numpy()
    d, advantages = flat.log_ratio.numpy(), flat.advantages.numpy()
    moved = np.exp(flat.current.numpy()) - np.exp(flat.old.numpy())
    fine = np.where(advantages > 0, moved <= 0.2, moved >= -0.2)
    expected = {
        "cispo": -advantages * np.clip(np.exp(d), 0.8, 1.2),
        "dppo_tv": -advantages * np.minimum(np.exp(d), 3.0) * fine,
        "vanilla": [ppo_slope(*pair) for pair in zip(d, advantages, strict=True)],
    }
    for loss, slopes in expected.items():
        result = evaluate(flat, loss, loss_settings(aggregation="token-sum"), "verl-0.9")
        assert result.coefficients == pytest.approx(np.array(slopes) * weights)


@given(batch=padded_losses(3, 5))
def test_gspo_moves_each_token_by_its_rows_ratio(batch):
    flat = batch.flat().only_kept()
    result = evaluate(flat, "gspo", loss_settings(aggregation="token-sum"), "verl-0.9")
    start = 0
    for count in flat.lengths.tolist():
        row = slice(start, start + count)
        start += count
        if not count:
            continue
        mean = float(flat.log_ratio[row].mean())
        weights = 1.0 if flat.weights is None else flat.weights[row].numpy()
        expected = [ppo_slope(mean, float(item), c=np.inf) for item in flat.advantages[row]]
        assert result.coefficients[row] == pytest.approx(np.array(expected) * weights)


def test_binary_kl_keeps_gradients_back_to_the_old_policy():
    """p 0.5 -> 0.9: KL 0.51; A > 0 is stopped, A < 0 moves back and is kept."""
    batch = one_row(np.log([0.9, 0.9]), np.log([0.5, 0.5]), [1.0, -1.0])
    result = evaluate(batch, "dppo_kl", loss_settings(aggregation="token-sum"), "verl-0.9")
    assert result.coefficients == pytest.approx([0.0, 1.8])
    assert result.metrics["actor/pg_clipfrac"] == pytest.approx(0.5)
    wide = loss_settings(aggregation="token-sum", clip_high=0.52)
    assert evaluate(batch, "dppo_kl", wide, "verl-0.9").coefficients == pytest.approx([-1.8, 1.8])


@pytest.mark.parametrize(
    ("trainer", "loss"),
    [case for case in losses_of("verl-0.9", "slime") if case[1] != "clip_cov"],  # which leaves out
)
@given(batch=padded_losses())
@dear(20)
def test_ratio_one_is_the_plain_policy_gradient(trainer, loss, batch):
    """In one row, where token and row means coincide, it is -A / tokens."""
    tokens = batch.flat().only_kept()
    assume(len(tokens.current))
    advantages = tokens.advantages.numpy()
    if loss in ("geo_mean", "gspo"):  # of one advantage per row
        advantages = np.full_like(advantages, advantages[0])
    same = one_row(tokens.current.numpy(), tokens.current.numpy(), advantages)
    chosen = default_settings(trainer).changed(aggregation="token-mean", dro_beta=0.1)
    result = evaluate(same, loss, chosen, trainer)
    assert result.coefficients == pytest.approx(-advantages / len(advantages))


def test_clip_higher_moves_the_upper_bound_alone():
    d = np.log([1.25, 0.75, 1.25, 0.75])
    batch = one_row(d, np.zeros(4), [1.0, 1.0, -1.0, -1.0])
    equal = evaluate(batch, "vanilla", loss_settings(), "verl-0.9")
    higher = evaluate(batch, "vanilla", loss_settings(clip_high=0.28), "verl-0.9")
    # A > 0 is clipped above, A < 0 below.
    assert equal.coefficients == pytest.approx(np.array([0.0, -0.75, 1.25, 0.0]) / 4)
    assert higher.coefficients == pytest.approx(np.array([-1.25, -0.75, 1.25, 0.0]) / 4)
    assert equal.metrics["actor/pg_clipfrac"] == pytest.approx(0.5)
    assert higher.metrics["actor/pg_clipfrac"] == pytest.approx(0.25)


def test_dual_clip_of_two_tokens():
    """A = -2: ratio 5 is above c = 3, so its loss is 6 and flat; ratio 2 is 4 with slope 4."""
    batch = one_row(np.log([5.0, 2.0]), np.zeros(2), [-2.0, -2.0])
    result = evaluate(batch, "vanilla", loss_settings(), "verl-0.9")
    assert result.loss == pytest.approx((6.0 + 4.0) / 2)
    assert result.coefficients == pytest.approx([0.0, 2.0])
    assert result.metrics["actor/pg_clipfrac_lower"] == pytest.approx(0.5)
    assert result.metrics["actor/ppo_kl"] == pytest.approx(-np.log(10.0) / 2)


def test_dual_clip_leaves_positive_advantages_alone():
    """A = 1, ratio 5: clipped at 1.2. A = -1, ratio 0.5: clipped at 0.8. c has no effect."""
    batch = one_row(np.log([5.0, 0.5]), np.zeros(2), [1.0, -1.0])
    result = evaluate(batch, "vanilla", loss_settings(), "verl-0.9")
    assert result.loss == pytest.approx((-1.2 + 0.8) / 2)
    assert not result.coefficients.any()
    assert result.metrics["actor/pg_clipfrac"] == pytest.approx(1.0)
    assert result.metrics["actor/pg_clipfrac_lower"] == 0.0


def test_weights_multiply_what_is_already_clipped():
    batch = one_row(np.log([5.0, 2.0]), np.zeros(2), [-2.0, -2.0], weights=[0.5, 0.25])
    result = evaluate(batch, "vanilla", loss_settings(), "verl-0.9")
    assert result.loss == pytest.approx((3.0 + 1.0) / 2)
    assert result.coefficients == pytest.approx([0.0, 0.5])


def test_reinforce_with_weights():
    batch = one_row([-1.0, -2.0], [-1.5, -1.0], [1.0, -3.0], weights=[0.5, 2.0])
    result = evaluate(batch, "reinforce", loss_settings(), "verl-0.9")
    assert result.loss == pytest.approx((0.5 * 1.0 - 2.0 * 6.0) / 2)
    assert result.coefficients == pytest.approx([-0.25, 3.0])
    assert result.metrics == pytest.approx({"actor/ppo_kl": 0.25})


def test_the_loss_is_constant_beyond_20_nats():
    batch = one_row([-1.0, -1.0], [-26.0, -2.0], [1.0, 1.0])
    result = evaluate(batch, "vanilla", loss_settings(clip_high=1e12), "verl-0.9")
    assert result.loss == pytest.approx(-(np.exp(20.0) + np.e) / 2)
    assert result.coefficients == pytest.approx([0.0, -np.e / 2])


def test_padded_batches_and_flat_ones_hold_the_same_tokens():
    ones = np.ones((2, 3))
    mask = np.array([[1, 0, 1], [0, 0, 0]], bool)
    kept = np.array([[1, 0, 0], [0, 0, 0]], bool)
    flat = PaddedLoss(-ones, -ones, ones, mask, kept).flat()
    assert flat.lengths.tolist() == [2, 0]
    assert flat.kept.tolist() == [True, False]
    assert flat.padded_width == 3


def test_gspo_is_constant_beyond_10_nats():
    batch = one_row([-1.0], [-12.0], [-1.0])
    result = evaluate(batch, "gspo", loss_settings(), "verl-0.9")
    assert result.loss == pytest.approx(np.exp(10.0))
    assert result.coefficients.tolist() == [0.0]


def test_total_variation_has_two_bounds():
    """p moves by 0.3 up and down: within 0.4 above, beyond 0.2 below."""
    batch = one_row(np.log([0.8, 0.2]), np.log([0.5, 0.5]), [1.0, -1.0])
    chosen = loss_settings(clip_high=0.4, clip_low=0.2, aggregation="token-sum")
    result = evaluate(batch, "dppo_tv", chosen, "verl-0.9")
    assert result.coefficients == pytest.approx([-1.6, 0.0])


def test_kl_cov_rounds_its_number_of_tokens_down():
    """0.49 of 4 tokens is one token: the one with the largest (A - mean) (current - mean)."""
    batch = one_row([-1.0, -2.0, -3.0, -2.0], [-1.5, -2.5, -3.5, -2.5], [5.0, 0.0, 0.0, 0.0])
    chosen = loss_settings(kl_cov_ratio=0.49, ppo_kl_coef=10.0, aggregation="token-sum")
    result = evaluate(batch, "kl_cov", chosen, "verl-0.9")
    assert result.coefficients == pytest.approx([-5.0 * np.exp(0.5) + 10.0, 0.0, 0.0, 0.0])
    assert result.metrics == {"actor/ppo_kl": pytest.approx(0.5)}


def test_geo_mean_counts_clipped_tokens_by_their_advantage():
    batch = one_row([-1.0] * 4, [-2.0] * 4, [1.0, -1.0, 0.0, 0.0])
    result = evaluate(batch, "geo_mean", loss_settings(), "verl-0.9").metrics
    assert result["actor/pg_clipfrac"] == pytest.approx(0.25)
    assert result["actor/pg_clipfrac_lower"] == pytest.approx(0.25)
