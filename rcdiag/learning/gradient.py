"""A gradient of all trained parameters, its norm, and its norm for each part of the model."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from msgspec import Struct
from torch import Tensor

from rcdiag.learning.policy import TrainablePolicy

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")


class Gradient(Struct, frozen=True):
    """d loss / d parameter, float32, by the parameter's name."""

    values: Mapping[str, Tensor]
    groups: Mapping[str, str]  # parameter -> embedding, layer 0, ..., norm, head

    def dot(self, other: Gradient) -> float:
        """Return the inner product sum_p <self_p, other_p>, summed in float64."""
        return sum(_dot(value, other.values[name]) for name, value in self.values.items())

    def norm(self) -> float:
        """Return the Euclidean norm over all parameters, sqrt(sum_p |self_p|^2)."""
        return math.sqrt(self.dot(self))

    def norm_by_layer(self) -> dict[str, float]:
        """Return the norm of each group of parameters; the squares add up to the total's square."""
        squares: dict[str, float] = defaultdict(float)
        for name, value in self.values.items():
            squares[self.groups[name]] += _dot(value, value)
        return {group: math.sqrt(square) for group, square in squares.items()}

    def scaled(self, factor: float) -> Gradient:
        return Gradient({name: v * factor for name, v in self.values.items()}, self.groups)


def combined(parts: Sequence[Gradient], factors: Sequence[float]) -> Gradient:
    """Return the sum of factors_j parts_j over j; `parts` has at least one."""
    total = parts[0].scaled(factors[0])
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        if factor != 0:
            for name, value in part.values.items():
                total.values[name].add_(value, alpha=factor)
    return total


def _dot(left: Tensor, right: Tensor) -> float:
    return float(torch.dot(left.flatten().double(), right.flatten().double()))


def layer_groups(policy: TrainablePolicy) -> dict[str, str]:
    """Map each trained parameter to its part of the model: embedding, layer N, norm or head.

    `norm` is the normalisation after the layers. A head that shares the embedding's weight counts
    as `embedding`, since it is one parameter with one gradient.
    """
    modules = {id(m): name for name, m in policy.model.named_modules()}
    embedding = modules[id(policy.model.get_input_embeddings())]
    head = modules[id(policy.head)]

    def group(name: str) -> str:
        if name.startswith(embedding + "."):
            return "embedding"
        if name.startswith(head + "."):
            return "head"
        layer = LAYER.search(name)
        return "norm" if layer is None else f"layer {layer[1]}"

    return {name: group(name) for name in policy.parameters}
