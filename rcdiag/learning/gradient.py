"""One gradient of all trained parameters, and its numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """d loss / d parameter, float32, by the parameter's name."""

    values: Mapping[str, Tensor]
    groups: Mapping[str, str]  # parameter -> embedding, layer 0, ..., norm, head

    def dot(self, other: Gradient) -> float:
        """sum_p <self_p, other_p>, added up in float64."""
        return sum(_dot(value, other.values[name]) for name, value in self.values.items())

    def norm(self) -> float:
        """sqrt(sum_p |self_p|^2)."""
        return math.sqrt(self.dot(self))

    def norm_by_layer(self) -> dict[str, float]:
        """The norm of each group; their squares add up to that of the whole."""
        squares: dict[str, float] = defaultdict(float)
        for name, value in self.values.items():
            squares[self.groups[name]] += _dot(value, value)
        return {group: math.sqrt(square) for group, square in squares.items()}

    def scaled(self, factor: float) -> Gradient:
        return Gradient({name: v * factor for name, v in self.values.items()}, self.groups)

    def plus(self, other: Gradient) -> Gradient:
        added = {name: value + other.values[name] for name, value in self.values.items()}
        return Gradient(added, self.groups)

    def flat(self) -> Tensor:
        """[parameters] all in one."""
        return torch.cat([value.flatten() for value in self.values.values()])


def combined(parts: Sequence[Gradient], factors: Sequence[float]) -> Gradient:
    """sum_j factors_j parts_j; `parts` has at least one."""
    found = parts[0].scaled(factors[0])
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        if factor != 0:
            for name, value in part.values.items():
                found.values[name].add_(value, alpha=factor)
    return found


def _dot(left: Tensor, right: Tensor) -> float:
    return float(torch.dot(left.flatten().double(), right.flatten().double()))
