"""The three shipped policies as networks, and weights made from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.faults.network import EMBEDDING, FLOAT8_MAX, Network, Options, Tensors, to_float8
from tests.faults.prompts import POLICY

STEPS = (0, 4, 8)
Change = Callable[[Tensor], Tensor]


@cache
def tensors(step: int) -> Tensors:
    loaded = load_file(POLICY / f"step_{step}" / "model.safetensors")
    return {name: value.float() for name, value in loaded.items()}


def trainer(step: int) -> Network:
    """Return a policy with the trainer's forward pass, in float32."""
    return Network(tensors(step))


def engine(step: int) -> Network:
    """Return a policy with the sampler's forward pass: activations rounded to bfloat16."""
    return Network(tensors(step), Options(rounding="decode"))


def is_matrix(name: str, value: Tensor) -> bool:
    return value.ndim == 2 and name != EMBEDDING


def mixed(
    network: Network, other: Tensors, fraction: float, names: tuple[str, ...] = ()
) -> Network:
    """Interpolate tensors whose names contain one of `names` towards `other`."""

    def moved(name: str, value: Tensor) -> Tensor:
        if names and not any(part in name for part in names):
            return value
        return value + fraction * (other[name] - value)

    return network.with_tensors(moved)


def integers(value: Tensor, bits: int, group: int | None) -> Tensor:
    """Round to integers of some bits, one scale per `group` of inputs (None: per tensor)."""
    top = 2 ** (bits - 1) - 1
    blocks = value.reshape(1, -1) if group is None else value.reshape(-1, group)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-8) / top
    return ((blocks / scale).round().clamp(-top, top) * scale).reshape(value.shape)


def float8(value: Tensor, per_channel: bool) -> Tensor:
    top = value.abs().amax(-1, keepdim=True) if per_channel else value.abs().amax()
    return to_float8(value, top / FLOAT8_MAX)


def low_rank(step: int, rank: int, scale: float, random: np.random.Generator) -> Tensors:
    """Draw an adapter: the change of every attention and MLP matrix when merged."""
    source = torch.Generator().manual_seed(int(random.integers(2**31)))
    added = {}
    for name, value in tensors(step).items():
        if is_matrix(name, value):
            left = torch.randn(value.shape[0], rank, generator=source)
            right = torch.randn(rank, value.shape[1], generator=source)
            added[name] = left @ right * (scale * value.std() / rank**0.5)
    return added


def plus(network: Network, added: Tensors, times: float) -> Network:
    return network.with_tensors(lambda n, v: v + times * added[n] if n in added else v)


def halves_exchanged(network: Network, name: str, axis: int) -> Network:
    """Exchange the two halves of a tensor along an axis."""

    def changed(each: str, value: Tensor) -> Tensor:
        return torch.cat(value.chunk(2, axis)[::-1], axis) if each == name else value

    return network.with_tensors(changed)
