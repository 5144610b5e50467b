"""Gradients and steps of a real model, against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from rcdiag.results.plain import to_plain
from rcdiag.statistics.intervals import jackknife_interval
from rcdiag.usecases.replay.gradients import gradients
from rcdiag.usecases.replay.real_updates import ModelReplay, train
from tests.usecases.replay.builders import update_of
from tests.usecases.replay.plain import LOSSES, Plain, k3
from tests.usecases.replay.with_model import (
    loaded,
    model_of,
    plan_for,
    replay_model_of,
    trainee_of,
    training_of,
)

pytestmark = pytest.mark.engine
every_loss = pytest.mark.parametrize("name", list(LOSSES))
UPDATE = update_of(plan=plan_for())
# A loss is a float32 mean of cancelling terms near 1: processors differ by this much.
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def trainee(model):
    return trainee_of(model)


@pytest.fixture(scope="module")
def batch(trainee, table):
    parts, result = loaded(table)
    return result.scored(trainee.log_probs(parts))


@pytest.fixture(scope="module")
def parts(table):
    return loaded(table)[0]


def on_model(model, trainee, batch, training) -> ModelReplay:
    training = model_of(model, training)
    return ModelReplay(learner=trainee, update=UPDATE, training=training, batch=batch)


@pytest.fixture(scope="module")
def replayed(model, table):
    return replay_model_of(table, model_of(model))


def test_pairs_hold_the_differences_of_gradients_and_of_steps(replayed):
    assert replayed.paired
    for one, others in replayed.paired.items():
        for other, pair in others.items():
            first, second = replayed.presets[one], replayed.presets[other]
            norms = first.gradient.grad_norm - second.gradient.grad_norm
            assert pair.grad_norm.value == pytest.approx(norms)
            moved = first.after_step.kl_rollout_new.value - second.after_step.kl_rollout_new.value
            assert pair.kl_rollout_new.value == pytest.approx(moved, abs=1e-9)
            for number in (pair.loss, pair.grad_norm, pair.kl_rollout_new):
                assert number.low <= number.value <= number.high


def test_the_interval_of_a_paired_gradient_is_that_of_replays_without_each_group(
    model, table, replayed, tmp_path
):
    """Sketches of rows give a similar interval as replays of smaller tables."""
    names = ("decoupled_token_is", "bypass_ppo_clip")
    rows = pq.read_table(table)
    left_out = []
    for group in sorted(set(rows["group_id"].to_pylist())):
        path = tmp_path / f"{group}.parquet"
        pq.write_table(rows.filter(pc.not_equal(rows["group_id"], group)), path)
        presets = replay_model_of(path, model_of(model), *names).presets
        first, second = (presets[name].gradient.grad_norm for name in names)
        left_out.append(first - second)
    pair = replayed.paired[names[0]][names[1]].grad_norm
    low, high = jackknife_interval(pair.value, np.array(left_out))
    assert 0.5 < (pair.high - pair.low) / (high - low) < 2.0


def test_old_and_current_log_probs_are_the_models(model, table, batch):
    expected = Plain.load(model, table).all_log_probs()
    np.testing.assert_allclose(batch.old, expected, atol=2e-5)
    assert np.abs(batch.rollout - expected).max() > 0.1


@every_loss
def test_a_gradient_is_that_of_the_loss_by_autograd(model, table, trainee, batch, name):
    replay = on_model(model, trainee, batch, training_of())
    run = replay.loss(name)
    result = gradients(replay, {name: run}, None).whole[name]
    plain = Plain.load(model, table)
    loss = plain.loss(LOSSES[name], range(len(plain.rows)), plain.olds())
    loss.backward()
    assert run.result.loss == pytest.approx(loss.item(), rel=1e-5, abs=ROUNDING)
    expected = {key: p.grad for key, p in plain.model.named_parameters()}
    norm = float(sum(item.square().sum() for item in expected.values())) ** 0.5
    apart = sum((result.values[key].double() - expected[key]).square().sum() for key in expected)
    assert float(apart) ** 0.5 <= 1e-5 * norm


@every_loss
def test_a_step_moves_the_policy_as_in_plain_torch(model, table, batch, replayed, name):
    plain = Plain.load(model, table)
    old, entropy = plain.all_log_probs(), plain.entropy()
    weights = [p.detach().clone() for p in plain.model.parameters()]
    optimizer = torch.optim.SGD(plain.model.parameters(), lr=0.1)
    plain.train(LOSSES[name], optimizer, [range(len(plain.rows))])
    new, after = plain.all_log_probs(), replayed.presets[name].after_step
    moved = sum(
        (p.detach() - w).square().sum()
        for p, w in zip(plain.model.parameters(), weights, strict=True)
    )
    change = new - old
    assert k3(old, new) > 1e-3
    assert after.step_norm == pytest.approx(float(moved) ** 0.5, rel=1e-4)
    assert after.kl_old_new.value == pytest.approx(k3(old, new), rel=1e-3)
    assert after.kl_rollout_new.value == pytest.approx(k3(batch.rollout, new), rel=1e-3)
    growth = k3(batch.rollout, new) / k3(batch.rollout, old)
    assert after.mismatch_growth == pytest.approx(growth, rel=1e-3)
    up, down = batch.advantages > 0, batch.advantages < 0
    assert after.log_prob_change_positive == pytest.approx(change[up].mean(), abs=1e-4)
    assert after.log_prob_change_negative == pytest.approx(change[down].mean(), abs=1e-4)
    assert after.entropy_before == pytest.approx(entropy, rel=1e-5)
    assert after.entropy_after == pytest.approx(plain.entropy(), rel=1e-4)
    assert after.perplexity_after == pytest.approx(np.exp(-new.mean()), rel=1e-4)
    outside = (np.exp(change) < 0.8) | (np.exp(change) > 1.2)
    assert after.beyond_clip == pytest.approx(outside.mean())


def shuffled(rows: int, count: int, epochs: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    orders = [random.permutation(rows) for _ in range(epochs)]
    return [np.sort(part) for order in orders for part in np.array_split(order, count)]


@every_loss
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_epochs_of_minibatches_equal_a_plain_loop(
    model, table, trainee, parts, batch, name, optimizer
):
    """Three mini-batches, twice; in decoupled mode weights and old log-probs are fixed."""
    options = {"weight_decay": 0.1, "max_grad_norm": 0.5}
    rate = 0.05 if optimizer == "sgd" else 1e-3
    training = training_of(optimizer, rate, epochs=2, minibatches=3, seed=3, **options)
    trainee.restore()
    train(on_model(model, trainee, batch, training), name)
    result = trainee.log_probs(parts).log_probs
    trainee.restore()
    plain = Plain.load(model, table)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    by_hand = kind(plain.model.parameters(), lr=rate, weight_decay=0.1)
    chunks = [item.tolist() for item in shuffled(len(plain.rows), 3, 2)]
    plain.train(LOSSES[name], by_hand, chunks, max_grad_norm=0.5)
    expected = plain.all_log_probs()
    assert np.abs(expected - batch.old).max() > 0.02
    np.testing.assert_allclose(result, expected, atol=2e-3 * np.abs(expected - batch.old).max())


def test_presets_with_the_same_coefficients_have_the_same_gradient(model, table):
    """Bounds that no ratio reaches do not change coefficients and gradients, bit for bit.

    What the report takes from sketches is not: with an AVX-512 MKL the matrix products of two
    backward passes over the same numbers differ by 9e-16 in sketches of up to 2.7 (1e-17 with
    MKL_CBWR=COMPATIBLE). Presets with the same coefficients share one step, so that what comes
    after it is the same object.
    """
    presets = replay_model_of(table, model_of(model), "disabled").presets
    disabled, naive = presets["disabled"], presets["naive"]
    assert disabled.after_step == naive.after_step
    ones, others = (numbers(to_plain(one.gradient)) for one in (disabled, naive))
    assert len(ones) > 5
    assert ones == pytest.approx(others, rel=1e-9, abs=1e-12, nan_ok=True)
    exact = [key for key in ones if "by_layer" in key]
    assert {key: ones[key] for key in exact} == {key: others[key] for key in exact}


def numbers(plain: Any, path: str = "") -> dict[str, float]:
    """Return the numbers of a nested value by path."""
    if isinstance(plain, dict | list):
        items = plain.items() if isinstance(plain, dict) else enumerate(plain)
        return {k: v for key, value in items for k, v in numbers(value, f"{path}/{key}").items()}
    return {path: float(plain)} if isinstance(plain, float | int) else {}


def test_the_gradient_report_is_that_of_the_whole_gradient(replayed, model, table):
    plain = Plain.load(model, table)
    plain.loss(LOSSES["naive"], range(len(plain.rows)), plain.olds()).backward()
    squares = sum(float(p.grad.square().sum()) for p in plain.model.parameters())
    result = replayed.presets["naive"].gradient
    assert result.grad_norm == pytest.approx(squares**0.5, rel=1e-5)
    by_layer = result.norm_by_layer
    assert sum(item**2 for item in by_layer.values()) == pytest.approx(squares, rel=1e-5)
    assert {"layer 0", "layer 1"} <= by_layer.keys()


def test_the_loss_is_that_of_computed_log_probs(replayed, model, table):
    plain = Plain.load(model, table)
    for name, of_token in LOSSES.items():
        loss = plain.loss(of_token, range(len(plain.rows)), plain.olds()).item()
        assert replayed.presets[name].loss == pytest.approx(loss, rel=1e-5, abs=ROUNDING), name
    assert (replayed.old, replayed.current) == ("computed", "computed")
    assert replayed.empty_sequences == 1
