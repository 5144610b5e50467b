"""rcdiag's numpy tensors against torch: values and derivatives of every loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from rcdiag.losses.batch import LossBatch, loss_batch
from rcdiag.losses.tensor import Tensor
from tests.losses.batches import losses_of
from tests.losses.rules import RULES

DRAWN = np.random.default_rng(5)
VALUES = np.concatenate([DRAWN.normal(size=8), [0.0, 1.0, -1.0, 0.5]])
OTHERS = np.concatenate([DRAWN.normal(size=8), [0.0, 1.0, 2.0, -0.5]])
PULL = DRAWN.normal(size=12)
PLACES = np.array([0, 2, 1, 2, 2, 0, 3, 3, 0, 1, 2, 4])
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -800.0, 800.0, np.inf, -np.inf, np.nan, 5e-324, 0.2, -3.0, 30.0]
)

FUNCTIONS: dict[str, Any] = {
    "add": lambda x, y: x + y + 1.0 + (2.0 + x),
    "subtract": lambda x, y: (x - y) - 1.0 + (2.0 - x),
    "multiply": lambda x, y: x * y * 3.0 + 2.0 * x,
    "divide": lambda x, y: x / y + x / 2.0 + 1.0 / x,
    "negative": lambda x, y: -x * y,
    "flags": lambda x, y: x * ((x > y) | (x <= 0.3) & ~(y == 1.0) & (y != 2.0)),
    "exp": lambda x, y: x.exp(),
    "expm1": lambda x, y: x.expm1(),
    "log": lambda x, y: x.log(),
    "abs": lambda x, y: x.abs() * x.sign(),
    "square": lambda x, y: x.square(),
    "sqrt": lambda x, y: x.sqrt(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "clamp": lambda x, y: x.clamp(-0.5, 1.0) + x.clamp(max=0.0) * y + x.clamp(min=0.5),
    "nan_to_num": lambda x, y: x.nan_to_num(nan=1.0, posinf=2.0, neginf=3.0) * y,
    "maximum": lambda x, y: x.maximum(y) * 2.0,
    "minimum": lambda x, y: y.minimum(x) * 2.0,
    "where": lambda x, y: x.where(y > 0, 2.0) + y.where(y > 1, x * x) + y.where(y < 0, x.sum()),
    "sum": lambda x, y: y * x.sum() + x.mean(),
    "extremes": lambda x, y: y * x.max() + x.amin(),
    "cumsum": lambda x, y: x.cumsum(0) * y,
    "detach": lambda x, y: x.detach() * x,
    "clone": lambda x, y: x.clone() * y,
}


def both(values: np.ndarray) -> tuple[Tensor, torch.Tensor]:
    """Return the same numbers as a leaf tensor here and in torch."""
    return Tensor(values).leaf(), torch.tensor(values, requires_grad=True)


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("values", [VALUES, SPECIAL], ids=["plain", "special"])
def test_a_function_and_its_derivatives_are_those_of_torch(name, values):
    (x, torch_x), (y, torch_y) = both(values), both(OTHERS)
    ours, theirs = FUNCTIONS[name](x, y), FUNCTIONS[name](torch_x, torch_y)
    same(ours.detach().numpy(), theirs.detach().numpy())
    pull = PULL if values is VALUES else np.where(np.arange(12) % 4, PULL, np.nan)
    total, expected = (ours * Tensor(pull)).sum(), (theirs * torch.tensor(pull)).sum()
    gradients = torch.autograd.grad(expected, [torch_x, torch_y], allow_unused=True)
    for of, gradient in zip((x, y), gradients, strict=True):
        same(total.derivative(of), np.zeros(12) if gradient is None else gradient.numpy())


def test_indexing_and_scatter_are_those_of_torch():
    (x, torch_x), (y, torch_y) = both(VALUES), both(OTHERS[:5])
    counts = np.array([3, 0, 2, 1, 0, 0, 1, 0, 0, 0, 0, 5])
    ours = y.index_add(0, Tensor(PLACES), x)[Tensor(PLACES)] * x.repeat_interleave(Tensor(counts))
    theirs = torch_y.index_add(0, torch.tensor(PLACES), torch_x)[torch.tensor(PLACES)]
    theirs = theirs * torch_x.repeat_interleave(torch.tensor(counts))
    same(ours.detach().numpy(), theirs.detach().numpy())
    flags, torch_flags = Tensor(VALUES > 0), torch.tensor(VALUES > 0)
    total, expected = ours[flags].sum(), theirs[torch_flags].sum()
    for of, gradient in zip((x, y), torch.autograd.grad(expected, [torch_x, torch_y]), strict=True):
        same(total.derivative(of), gradient.numpy())
    zeros, torch_zeros = Tensor(np.zeros(5)), torch.zeros(5, dtype=torch.float64)
    same(
        zeros.scatter_reduce(0, Tensor(PLACES), x.detach(), "amax").numpy(),
        torch_zeros.scatter_reduce(0, torch.tensor(PLACES), torch_x.detach(), "amax").numpy(),
    )
    same(x.topk(3).values.detach().numpy(), torch_x.topk(3).values.detach().numpy())
    same(x.topk(3).indices.numpy(), torch_x.topk(3).indices.numpy())


def test_tracked_tensors_cannot_be_read_or_written_silently():
    leaf = Tensor(VALUES).leaf()
    with pytest.raises(ValueError, match="detach"):
        (leaf * 2.0).numpy()
    with pytest.raises(ValueError, match="cannot be assigned to"):
        leaf[0] = 1.0


def drawn_batch() -> LossBatch:
    lengths = np.array([7, 1, 12, 5, 9, 6, 0])
    tokens = int(lengths.sum())
    old = -DRAWN.exponential(size=tokens)
    moved = DRAWN.normal(scale=0.4, size=tokens)
    moved[::5] = 0.0  # where bounds, and both sides of a clip, meet
    return loss_batch(
        np.minimum(old + moved, -1e-3),
        old,
        np.repeat([1.5, -1.0, 0.0, -2.0, 0.7, 1.0, 0.0], lengths),
        lengths,
        kept=DRAWN.random(tokens) < 0.8,
        weights=DRAWN.random(tokens) * 2.0,
        rollout=old - DRAWN.normal(scale=0.1, size=tokens),
        padded_width=14,
        groups=np.array([0, 0, 1, 1, 2, 2]),
        rewards=np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0]),
        positions=np.concatenate([2 * np.arange(length) for length in lengths]),
    )


def in_torch(batch: LossBatch) -> LossBatch:
    tensors = {
        name: torch.tensor(values.numpy())
        for name in batch.__struct_fields__
        if isinstance(values := getattr(batch, name), Tensor)
    }
    return replace(batch, **tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize(("trainer", "loss"), losses_of())
def test_every_loss_is_the_same_function_in_torch(trainer, loss):
    rules, batch = RULES[trainer], drawn_batch()
    settings = rules.defaults
    if loss == "dro":
        settings = settings.changed(dro_beta=0.1)
    if loss == "luspo":
        settings = settings.changed(importance_sampling_level="sequence")
    theirs = in_torch(batch)
    ours = replace(batch, current=batch.current.leaf())
    theirs.current.requires_grad_()  # type: ignore[attr-defined]
    mine, expected = (rules.loss(loss)(each, settings) for each in (ours, theirs))
    same(mine.values.detach().numpy(), expected.values.detach().numpy())
    assert mine.logged.keys() == expected.logged.keys()
    for name, values in mine.logged.items():
        same(values.detach().numpy(), expected.logged[name].detach().numpy())
    pull = np.random.default_rng(1).normal(size=len(mine.values))
    total = (expected.values * torch.tensor(pull)).sum()  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(total, theirs.current)  # type: ignore[call-overload]
    derivative = (mine.values * Tensor(pull)).sum().derivative(ours.current)
    same(derivative, gradient.numpy())
    assert np.any(derivative)


def test_functions_of_torch_accept_these_tensors():
    (x, torch_x), (y, torch_y) = both(VALUES), both(OTHERS)

    def loss(x: Any, y: Any) -> Any:
        clipped = torch.clamp(torch.exp(x), min=0.8, max=1.2)
        least = torch.max(-y * torch.exp(x), torch.minimum(-y * clipped, torch.zeros_like(y)))
        return torch.sum(torch.where(torch.abs(x) > 0.5, least, 2.0)) / torch.mean(y.square())

    ours, theirs = loss(x, y), loss(torch_x, torch_y)
    same(ours.detach().numpy(), theirs.detach().numpy())
    for of, gradient in zip((x, y), torch.autograd.grad(theirs, [torch_x, torch_y]), strict=True):
        same(ours.derivative(of), gradient.numpy())


def test_an_unsupported_function_of_torch_is_named():
    with pytest.raises(TypeError, match=r"torch\.erfinv: losses use numpy tensors"):
        torch.erfinv(both(VALUES)[0])  # type: ignore[arg-type]
