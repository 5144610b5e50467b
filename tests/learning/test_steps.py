import numpy as np
import pytest
import torch

from rcdiag.learning.training_settings import LoraSettings, OptimizerSettings
from tests.learning.helpers import ADAMW, objective, plain_model, random_coefficients, take, trainee

pytestmark = pytest.mark.engine

SGD = OptimizerSettings(name="sgd", learning_rate=0.3, momentum=0.9, weight_decay=0.01)


def torch_optimizer(model, settings: OptimizerSettings):
    if settings is SGD:
        return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def weights_of(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def weights(one) -> dict[str, torch.Tensor]:
    return weights_of(one.policy.model)


def distance(left, right) -> float:
    return sum(float((v - right[n]).square().sum()) for n, v in left.items()) ** 0.5


def same(left, right) -> bool:
    return all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize("settings", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_steps_equal_a_plain_torch_loop(settings, qwen3, parts):
    one, plain = trainee(qwen3), plain_model(qwen3, torch.float32)
    optimizer = torch_optimizer(plain, settings)
    start = weights_of(plain)
    for seed in range(3):
        before = weights_of(plain)
        optimizer.zero_grad()
        objective(plain, parts, random_coefficients(parts, 1, seed)[0]).backward()
        limit = settings.max_grad_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), limit))
        optimizer.step()
        assert (norm > limit) == (settings is ADAMW)
        moved = take(one, parts, (seed, seed + 1), settings)
        assert moved == pytest.approx(distance(weights_of(plain), before), rel=1e-3)
    result = weights(one)
    expected = weights_of(plain)
    assert distance(result, expected) < 1e-3 * distance(start, expected)


def test_a_step_lowers_the_loss(qwen3, parts):
    one = trainee(qwen3)
    coefficients = random_coefficients(parts, 1)
    before = coefficients[0] @ one.log_probs(parts).log_probs
    take(one, parts, (0, 1), OptimizerSettings(name="sgd", learning_rate=0.1))
    assert coefficients[0] @ one.log_probs(parts).log_probs < before


@pytest.mark.parametrize("policy", ["hf:float32", "hf:bfloat16"])
def test_restore_is_exact_and_resets_the_optimizer(policy, qwen3, parts):
    one = trainee(qwen3, policy)
    loaded = weights(one)
    first = take(one, parts, (0, 2))
    moved = weights(one)
    assert not same(loaded, moved)
    one.restore()
    assert same(loaded, weights(one))
    assert take(one, parts, (0, 2)) == first
    assert same(moved, weights(one))


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("hf:float32", SGD), ("hf:float32", ADAMW), ("hf:bfloat16", ADAMW)],
    ids=["sgd", "adamw", "bfloat16"],
)
def test_training_continues_exactly_from_a_snapshot(policy, settings, qwen3, parts):
    one = trainee(qwen3, policy)
    take(one, parts, (0, 2), settings)
    kept = one.snapshot()
    take(one, parts, (2, 4), settings)
    expected = weights(one)
    one.restore()
    take(one, parts, (7, 8))
    for _ in range(2):
        one.load_snapshot(kept)
        take(one, parts, (2, 4), settings)
        assert same(expected, weights(one))


def test_bfloat16_weights_keep_small_steps_in_their_masters(qwen3, parts):
    one = trainee(qwen3, "hf:bfloat16")
    loaded = weights(one)
    tiny = OptimizerSettings(name="adamw", learning_rate=1e-6)
    moved = take(one, parts, (0, 1), tiny)
    numbers = sum(p.numel() for p in one.policy.parameters.values())
    assert moved == pytest.approx(1e-6 * numbers**0.5, rel=0.2)
    assert distance(loaded, weights(one)) < moved
    assert {p.dtype for p in one.policy.parameters.values()} == {torch.bfloat16}
    assert not same(loaded, one.snapshot().masters)


def test_a_gradient_that_is_not_finite_takes_no_step(qwen3, parts):
    one = trainee(qwen3)
    loaded = weights(one)
    gradient = one.gradients(parts, random_coefficients(parts, 1)).whole[0]
    assert one.apply(gradient.scaled(float("inf")), ADAMW) == 0.0
    assert same(loaded, weights(one))


def test_only_the_learning_rate_may_change_between_steps(qwen3, parts):
    one = trainee(qwen3)
    take(one, parts, (0, 1), OptimizerSettings(name="sgd", learning_rate=0.1))
    gradient = one.gradients(parts, random_coefficients(parts, 1, 1)).whole[0]
    moved = one.apply(gradient, OptimizerSettings(name="sgd", learning_rate=0.2))
    assert moved == pytest.approx(0.2 * gradient.norm(), rel=1e-4)
    with pytest.raises(ValueError, match="restore"):
        take(one, parts, (2, 3), ADAMW)


def test_a_new_adapter_depends_on_the_seed_only(qwen3):
    first, again, other = (
        weights(trainee(qwen3, lora=LoraSettings(rank=4, seed=seed))) for seed in (0, 0, 1)
    )
    assert same(first, again)
    assert not same(first, other)


def test_a_new_adapter_changes_no_output_and_only_it_is_trained(qwen3, parts, shared):
    one = trainee(qwen3, lora=LoraSettings(rank=4))
    np.testing.assert_allclose(
        one.log_probs(parts).log_probs, shared.log_probs(parts).log_probs, atol=1e-6
    )
    before = weights(one)
    take(one, parts, (0, 2))
    after = weights(one)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == set(one.policy.parameters)
    assert all("lora_" in name for name in changed)
