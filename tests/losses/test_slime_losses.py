"""slime's policy loss against loops over samples, following its code at commit 624b824a8."""

from __future__ import annotations

from math import exp
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch, loss_batch
from rcdiag.losses.tensor import Tensor
from tests.losses.batches import one_row, padded_losses
from tests.losses.rules import default_settings, evaluate

SETTINGS = default_settings("slime")
PER_TOKEN = SETTINGS.changed(aggregation="token-mean")


def clip(ratio: float) -> float:
    return min(max(ratio, 0.8), 1.2)


def token_loss(loss: str, d: float, current: float, advantage: float, c: float | None) -> float:
    if loss == "cispo":
        return -clip(exp(d)) * advantage * current
    value = max(-exp(d) * advantage, -clip(exp(d)) * advantage)
    return min(value, -c * advantage) if c is not None and advantage < 0 else value


def samples_of(batch: LossBatch) -> list[dict[str, list[float]]]:
    names = ("current", "old", "advantages", "kept", "weights", "rollout")
    result, start = [], 0
    for count in batch.lengths.tolist():
        columns = {name: getattr(batch, name) for name in names}
        result.append(
            {
                name: [1.0] * count if values is None else values[start : start + count].tolist()
                for name, values in columns.items()
            }
        )
        start += count
    return result


def by_loops(batch: LossBatch, loss: str, c: float | None, per_token: bool) -> dict[str, float]:
    """Compute the mean over samples of token means, or over tokens; rejected tokens count as 0."""
    sums = {"pg_loss": 0.0, "ppo_kl": 0.0, "ois": 0.0, "pg_clipfrac": 0.0}
    for sample in samples_of(batch):
        d = [a - b for a, b in zip(sample["current"], sample["old"], strict=True)]
        if loss == "gspo" and d:
            d = [fmean(d)] * len(d)
        divisor = 1 if per_token else max(len(d), 1)
        for at, value in enumerate(d):
            advantage, kept = sample["advantages"][at], sample["kept"][at]
            one = token_loss(loss, value, sample["current"][at], advantage, c)
            sums["ois"] += exp(value) / divisor
            if not kept:
                continue
            sums["pg_loss"] += one * sample["weights"][at] / divisor
            sums["ppo_kl"] -= value / divisor
            # PPO's clip counts where it is the larger loss, CISPO's wherever it acts.
            outside = clip(exp(value)) != exp(value)
            larger = -clip(exp(value)) * advantage > -exp(value) * advantage
            sums["pg_clipfrac"] += (outside if loss == "cispo" else larger) / divisor
    lengths = batch.lengths.tolist()
    total = sum(max(item, 1) for item in lengths) if per_token else len(lengths)
    if batch.weights is None:
        sums.pop("ois")
    return {name: value / total for name, value in sums.items()}


@pytest.mark.parametrize("loss", ["vanilla", "gspo", "cispo"])
@given(batch=padded_losses(), c=st.sampled_from((None, 1.5)), per_token=st.booleans())
def test_against_loops(loss, batch, c, per_token):
    chosen = (PER_TOKEN if per_token else SETTINGS).changed(clip_c=c)
    flat = batch.flat()
    result = evaluate(flat, loss, chosen, "slime")
    expected = by_loops(flat, loss, c, per_token)
    assert result.metrics == pytest.approx(expected)
    assert result.loss == result.metrics["pg_loss"]


def test_cispo_has_a_gradient_through_log_probs_only():
    batch = one_row([-1.0, -1.0], [-2.0, -1.1], [1.0, 2.0])
    result = evaluate(batch, "cispo", SETTINGS, "slime")
    assert result.coefficients == pytest.approx([-1.2 / 2, -2.0 * exp(0.1) / 2])


def test_gspo_has_a_gradient_at_rejected_tokens_too():
    """The row's mean includes the rejected token, so the kept token's loss depends on it."""
    batch = one_row([-1.0, -1.1], [-1.0, -1.0], [1.0, 1.0], kept=[True, False])
    result = evaluate(batch, "gspo", SETTINGS, "slime")
    slope = -exp(-0.05) / 2 / 2  # of one kept token in two, by the mean of two
    assert result.coefficients == pytest.approx([slope, slope])
    assert result.metrics["ppo_kl"] == pytest.approx(0.05 / 2)


ROLLOUT = np.array([-0.4, -1.1, -1.0, -0.2, -2.0])
TOY = loss_batch(
    current=[-0.5, -1.0, -2.0, -0.3, -5.0],
    old=[-0.5, -1.0, -2.0, -0.3, -5.0],
    advantages=[1.0, 1.0, 1.0, -1.0, -1.0],
    lengths=[3, 2],
    rollout=ROLLOUT,
)


def by_sample(values) -> float:
    return float((np.mean(values[:3]) + np.mean(values[3:])) / 2)


def test_rejection_lowers_the_logged_metrics():
    """The reducer of the loss also reduces these metrics: denominators are unchanged."""
    kept = np.array([True, False, False, True, False])
    batch = replace(TOY, kept=Tensor(kept))
    result = evaluate(batch, "vanilla", SETTINGS, "slime").metrics
    assert result["train_rollout_logprob_abs_diff"] == pytest.approx((0.1 / 3 + 0.1 / 2) / 2)


def test_bypass_compares_the_current_policy_with_the_rollout():
    current = TOY.current + 0.05
    chosen = SETTINGS.changed(use_rollout_logprobs=True)
    batch = replace(TOY, current=current, old=Tensor(ROLLOUT))
    result = evaluate(batch, "vanilla", chosen, "slime").metrics
    expected = np.abs(current.numpy() - ROLLOUT)
    assert result["train_rollout_logprob_abs_diff"] == pytest.approx(by_sample(expected))


def test_opsm_drops_rows_with_negative_advantage_that_moved():
    """Row 0 moved down by 0.1 nats on average, row 1 up; only A < 0 in row 0 is dropped."""
    batch = loss_batch(
        [-1.2, -1.0, -0.5], [-1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [2, 1], weights=np.ones(3)
    )
    plain = evaluate(batch, "vanilla", SETTINGS, "slime")
    chosen = SETTINGS.changed(opsm_delta=0.09)
    result = evaluate(batch, "vanilla", chosen, "slime")
    assert plain.coefficients[0] != 0.0
    assert result.coefficients[0] == 0.0
    assert result.coefficients[1:] == pytest.approx(plain.coefficients[1:])
    assert result.metrics["opsm_clipfrac"] == pytest.approx((1 / 2 + 0) / 2)
    by_token = chosen.changed(aggregation="token-mean")
    result = evaluate(batch, "vanilla", by_token, "slime")
    assert result.metrics["opsm_clipfrac"] == pytest.approx((1 / 2 + 0) / 3)
    far = SETTINGS.changed(opsm_delta=0.11)
    result = evaluate(batch, "vanilla", far, "slime")
    assert result.coefficients == pytest.approx(plain.coefficients)


def test_everything_rejected_is_a_loss_of_zero():
    batch = loss_batch([-1.0], [-2.0], [1.0], [1], kept=[False])
    result = evaluate(batch, "vanilla", SETTINGS, "slime")
    assert (result.loss, result.undefined) == (0.0, None)
    assert not result.coefficients.any()


@pytest.mark.parametrize(("current", "old"), [(-1.0, -np.inf), (np.nan, -1.0)])
def test_rejected_nan_tokens_still_spoil_the_loss(current, old):
    """slime multiplies by the modified mask: inf x 0 and NaN x 0 are NaN."""
    batch = one_row([current, -1.0], [old, -1.0], [-1.0, 1.0], kept=[False, True])
    result = evaluate(batch, "vanilla", SETTINGS, "slime")
    assert np.isnan(result.loss)
    assert np.isnan(result.metrics["ppo_kl"])
    assert result.undefined is None


def test_other_denominators_change_the_loss_but_not_the_metrics():
    batch = one_row([-1.0, -1.0], [-1.1, -1.1], [1.0, 1.0], kept=[True, False])
    result = evaluate(batch, "vanilla", SETTINGS.changed(denominator="kept"), "slime")
    assert result.loss == pytest.approx(-exp(0.1))
    assert result.metrics["ppo_kl"] == pytest.approx(-0.1 / 2)


def test_a_mean_over_three_tokens_is_exact():
    """Dividing by an integer count would give a float32."""
    result = evaluate(one_row([-1.0] * 3, [-1.0] * 3, [1.0] * 3), "vanilla", SETTINGS, "slime")
    assert result.loss == pytest.approx(-1.0, rel=1e-12)
    np.testing.assert_allclose(result.coefficients, -1 / 3, rtol=1e-12)
