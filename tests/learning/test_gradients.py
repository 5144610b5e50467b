import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config

from rcdiag.engines.hf.head import LOGITS_AT_ONCE
from rcdiag.learning.backward import accumulate
from rcdiag.learning.families import separate_families
from rcdiag.learning.gradient import Gradient, combined
from rcdiag.learning.micro_batches import micro_batches, rows_of
from rcdiag.learning.training_settings import LoraSettings
from tests import engine_models as engines
from tests.learning.helpers import (
    gap,
    gradients_of_rows,
    random_coefficients,
    reference_gradient,
    tokens_in,
    trainee,
)

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma2", "gpt2", "phi", "mixtral"])
def test_gradients_equal_those_of_the_plain_model_in_float64(kind, parts, made):
    """Tied and untied heads, a bias in it, capped logits, temperatures, masks."""
    model = made(kind)
    coefficients = random_coefficients(parts, 2)
    result = trainee(model).gradients(parts, coefficients).whole
    for vector, gradient in zip(coefficients, result, strict=True):
        expected = reference_gradient(model, parts, vector)
        assert gradient.values.keys() == expected.keys()
        assert gap(gradient, Gradient(expected, gradient.groups)) < 1e-5


def test_gradients_equal_finite_differences_of_log_probs(qwen3, parts):
    one = trainee(qwen3)
    coefficients = random_coefficients(parts, 1) * tokens_in(parts) ** 0.5
    gradient = one.gradients(parts, coefficients).whole[0]
    random = torch.Generator().manual_seed(0)
    way = {n: torch.randn(v.shape, generator=random) for n, v in gradient.values.items()}
    step, values = 1e-4, []
    for sign in (1.0, -1.0):
        one.restore()
        for name, parameter in one.policy.parameters.items():
            parameter.data.add_(way[name], alpha=sign * step)
        values.append(coefficients[0] @ one.log_probs(parts).log_probs)
    slope = (values[0] - values[1]) / (2 * step)
    assert slope == pytest.approx(gradient.dot(Gradient(way, gradient.groups)), rel=2e-3)


@pytest.mark.parametrize("batch_tokens", [1, 150, 600])
def test_micro_batches_give_the_gradient_of_one_batch(batch_tokens, qwen3, parts):
    coefficients = random_coefficients(parts, 2)
    together = trainee(qwen3, batch_tokens=1_000_000).gradients(parts, coefficients).whole
    apart = trainee(qwen3, batch_tokens=batch_tokens).gradients(parts, coefficients).whole
    assert max(gap(a, b) for a, b in zip(apart, together, strict=True)) < 1e-6


def test_a_row_does_not_depend_on_its_neighbours_and_their_padding(shared, parts):
    """All rows in one batch with coefficients in one row equal that row alone."""
    rows = rows_of(parts, shared.policy.vocab_size)
    for index in (0, 3, 7):
        own = slice(rows[index].first, rows[index].first + len(rows[index].places))
        coefficients = np.zeros((1, tokens_in(parts)))
        coefficients[0, own] = random_coefficients(parts, 1)[0, own]
        everyone = np.ones(len(rows), np.bool_)
        batches = micro_batches(rows, everyone, 1_000_000, shared.policy.device, None)
        families = separate_families(coefficients)
        summed = accumulate(shared.policy, batches, coefficients, families, len(rows), None)
        crowd, by_itself = summed.gradients[0], shared.gradients(parts, coefficients).whole[0]
        assert gap(Gradient(crowd, by_itself.groups), by_itself) < 5e-6


def test_dependent_vectors_share_backwards_and_keep_their_gradients(shared, parts):
    a, b, c = random_coefficients(parts, 3)
    near = a + 0.1 * b + 0.1 * c  # is second, but chosen last
    vectors = np.stack([a, near, b, -2 * a, 3 * a - b, np.zeros_like(a)])
    result = shared.gradients(parts, vectors)
    assert result.backwards == 3
    for vector, gradient in zip(vectors[:5], result.whole, strict=False):
        assert gap(gradient, shared.gradients(parts, vector[None]).whole[0]) < 1e-6
    assert result.whole[5].norm() == 0.0


def test_rows_without_a_coefficient_are_not_run(shared, parts):
    coefficients = random_coefficients(parts, 2)
    rows = rows_of(parts, shared.policy.vocab_size)
    coefficients[:, rows[4].first :] = 0.0
    seen: list[int] = []
    embedding = shared.policy.model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _m, ids, _o: seen.append(len(ids[0])))
    shared.gradients(parts, coefficients)
    hook.remove()
    assert sum(seen) == 4


def test_zero_coefficients_give_a_gradient_of_zero(shared, parts):
    result = shared.gradients(parts, np.zeros((2, tokens_in(parts))))
    assert result.backwards == 0
    assert [gradient.norm() for gradient in result.whole] == [0.0, 0.0]


def test_gradients_of_rows_add_up_to_the_whole(shared, parts):
    coefficients = random_coefficients(parts, 2)
    by_row = gradients_of_rows(shared, parts, coefficients)
    assert len(by_row) == sum((part.sampled_lengths > 0).sum() for part in parts)
    for k, whole in enumerate(shared.gradients(parts, coefficients).whole):
        total = by_row[0][k]
        for row in by_row[1:]:
            total = combined([total, row[k]], [1.0, 1.0])
        assert gap(total, whole) < 1e-6


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_checkpointing_changes_nothing(lora, qwen3, parts):
    coefficients = random_coefficients(parts, 2)
    kept, again = (
        trainee(qwen3, checkpointing=on, lora=lora).gradients(parts, coefficients).whole
        for on in (False, True)
    )
    assert max(gap(a, b) for a, b in zip(again, kept, strict=True)) < 1e-6


def test_checkpointing_keeps_less_for_the_backward(qwen3, parts):
    kept = []
    for on in (False, True):
        policy = trainee(qwen3, checkpointing=on).policy
        batch = next(
            micro_batches(
                rows_of(parts, policy.vocab_size), np.ones(11, np.bool_), 600, policy.device, None
            )
        )
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
        ):
            policy.states(batch)
        kept.append(sum(sizes))
    assert kept[1] < 0.2 * kept[0]


@pytest.mark.parametrize("policy", ["hf:bfloat16", "hf:float32,autocast=bfloat16"])
def test_lower_precisions_are_near_float32_but_not_it(policy, qwen3, parts, shared):
    coefficients = random_coefficients(parts, 1)
    exact = shared.gradients(parts, coefficients).whole[0]
    result = trainee(qwen3, policy).gradients(parts, coefficients).whole[0]
    assert {value.dtype for value in result.values.values()} == {torch.float32}
    assert 1e-4 < gap(result, exact) < 0.2


def test_gradient_norms_are_given_by_layer(shared, parts, made):
    coefficients = random_coefficients(parts, 1)
    tied = shared.gradients(parts, coefficients).whole[0]
    by_layer = tied.norm_by_layer()
    assert list(by_layer) == ["embedding", "layer 0", "layer 1", "norm"]
    assert sum(n**2 for n in by_layer.values()) ** 0.5 == pytest.approx(tied.norm())
    for kind in ("llama", "gpt2", "phi"):
        by_layer = trainee(made(kind)).gradients(parts, coefficients).whole[0].norm_by_layer()
        assert {"embedding", "layer 0", "layer 1", "norm"} <= by_layer.keys()
        assert ("head" in by_layer) == (kind != "gpt2")


def test_logits_of_all_tokens_are_never_in_memory_at_once(made, parts):
    """Bounds the largest tensor of forward and backward, with a vocabulary of 60,000."""
    sizes = {**engines.SIZES, "vocab_size": 60_000, "hidden_size": 16}
    one = trainee(made("wide", Qwen3Config(**sizes)), batch_tokens=1_000_000)
    largest = UpperTail()
    with largest:
        one.gradients(parts, random_coefficients(parts, 2))
        one.log_probs(parts, entropy=True)
    assert tokens_in(parts) * 60_000 > 4 * LOGITS_AT_ONCE["cpu"]
    assert 10 * 60_000 < largest.numbers <= LOGITS_AT_ONCE["cpu"]


class UpperTail(TorchDispatchMode):
    """Records the largest number of elements of any tensor."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result
